"""The contracts of fedio: configuration, wire records, profiles, cost model, clock, run folder."""
