"""The ring's schedules on machines that are not here: discrete events, collectives, training."""
