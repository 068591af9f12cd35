"""What people use: command line, engines, comparisons, plots, reports, presets."""
