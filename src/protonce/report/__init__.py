"""The page people look at: `protonce report RUN`."""
