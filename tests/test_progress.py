"""What is said while it takes time."""


def test_progress_says_the_time_left_and_how_to_halve_it(monkeypatch, capsys):
    from protonce import progress

    clock = iter(range(0, 100000, 5))
    monkeypatch.setattr(progress.time, "perf_counter", lambda: float(next(clock)))
    reporter = progress.Reporter()
    reporter.begin(terms=(), epochs=40, steps=100)
    with reporter:
        reporter.clustering(0)
        reporter.clustered()
        for _ in range(19):
            reporter.step(0, None)
        assert "to go" not in capsys.readouterr().err
        reporter.step(0, None)
        # 3980 steps of 5 s, and 39 E-steps of 5 s
        assert "about 5 h 35 min to go; --epochs 20 would halve it" in capsys.readouterr().err


def test_a_log_says_how_far_it_is(monkeypatch, capsys):
    """Where there is no terminal: a line a minute, here of a clock that runs fast."""
    from protonce import progress

    clock = iter(range(0, 10_000, 25))
    monkeypatch.setattr(progress.time, "perf_counter", lambda: float(next(clock)))
    with progress.Steps().doing("encoding", 8) as seen:
        for _ in range(8):
            seen(1)
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == ["encoding  37 %, about 2 min to go", "encoding  75 %, about 50 s to go"]
    assert said[-1].startswith("encoding  4 min")
