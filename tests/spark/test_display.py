"""What a fit shows."""

from __future__ import annotations

from spark_ring.spark.display import BarDisplay, PlainDisplay, QuietDisplay, epoch_line, make_display

RECORD = {
    "epoch": 2,
    "loss": 0.123456789,
    "val_loss": 0.25,
    "mae": 1.5,
    "rows": 900,
    "seconds": 2.04,
    "rows_per_second": 4321.9,
    "data_wait_seconds": 0.5,
    "slowest_rank": 1,
    "lr": 0.001,
}
LIVE = {"epoch": 1, "epochs": 3, "step": 4, "steps": 10, "loss": 0.5, "rows_per_second": 1000.0}


def test_an_epoch_is_one_line_with_metrics_and_speed():
    assert epoch_line(RECORD, 5) == (
        "epoch 2/5  loss 0.12346  val_loss 0.25  mae 1.5  lr 0.001  4,322 rows/s  2.0 s"
    )


def test_verbose_zero_is_quiet_and_a_file_gets_plain_lines(capsys):
    assert isinstance(make_display(0), QuietDisplay)
    display = make_display(1)  # pytest's stdout is no terminal
    assert isinstance(display, PlainDisplay)
    display.note("wrote 5 rows")
    display.live(LIVE)
    display.epoch(RECORD, 5)
    display.close()
    assert capsys.readouterr().out.splitlines() == ["wrote 5 rows", epoch_line(RECORD, 5)]


def test_a_bar_moves_with_the_steps(capsys):
    display = BarDisplay()
    display.close()  # before anything was shown
    display = BarDisplay()
    display.live(LIVE)
    display.epoch(RECORD, 5)
    (task,) = display._bars.tasks
    assert (task.completed, task.total, task.description) == (4, 10, "epoch 1/3")
    display.close()
    assert "epoch 2/5" in capsys.readouterr().out
