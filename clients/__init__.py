"""The device side: data, models, samplers, data path, training, the ClientApp."""
