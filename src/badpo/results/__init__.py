"""Tables, charts and pages drawn from files alone; nothing here imports a model."""
