"""The one pipeline: from a recipe to a run folder (`run`), from a reference (`start`), to readouts (`evaluate`)."""
