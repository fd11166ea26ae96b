"""Params of training itself: objects, epochs, early stopping, workers, reporting. See :mod:`.params`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.ml.param.shared import HasSeed

from spark_ring.spark import converters as to
from spark_ring.spark.params import RingParams, Self, declare

__all__ = ["HasEarlyStopping", "HasObjects", "HasReporting", "HasTraining", "HasWorkers"]


class HasObjects(RingParams):
    """The user's own objects: what is trained and how it is judged."""

    model = declare(
        "model",
        "the model: a module, or a callable without arguments that returns one (it is called in each "
        "worker).",
        to.callable_object("model", "a module, or a callable that returns one"),
    )
    loss = declare(
        "loss",
        "callable (output, label) -> scalar mean over the batch; with several labels a list of them, one "
        "each, or one that is used for all. With weightCol it must accept reduction='none' or have a "
        "reduction attribute.",
        to.one_or_more_callables("loss", "a callable (output, label) -> scalar"),
    )
    lossWeights = declare(
        "lossWeights",
        "a list of numbers > 0, one per label, that weigh the losses in their sum. Unset: each weighs 1.",
        to.positive_numbers("lossWeights"),
    )
    optimizer = declare(
        "optimizer",
        "a callable that takes the model's parameters and returns the optimizer: an optimizer class, or "
        "for example lambda params: AdamW(params, lr=1e-3).",
        to.callable_object("optimizer", "a callable (parameters) -> optimizer, not an optimizer"),
    )
    learningRate = declare(
        "learningRate",
        "passed to the optimizer as lr=...; it is never scaled by the number of workers. Unset: the "
        "optimizer's own.",
        to.number("learningRate", 0.0, open_low=True),
    )
    scheduler = declare(
        "scheduler",
        "a callable that takes the optimizer and returns a learning-rate scheduler, stepped once after "
        "each epoch. Unset: the learning rate stays.",
        to.callable_object("scheduler", "a callable (optimizer) -> scheduler"),
    )
    metrics = declare(
        "metrics",
        "a dict from name to callable (output, label) -> scalar mean over the batch, computed for training"
        " rows and, as val_<name>, for validation rows.",
        to.functions_by_name("metrics"),
    )
    gradientClipNorm = declare(
        "gradientClipNorm",
        "the largest 2-norm of all gradients together, after averaging over workers. Unset: gradients are "
        "not clipped.",
        to.number("gradientClipNorm", 0.0, open_low=True),
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(metrics={})

    def setModel(self: Self, value: Any) -> Self:
        """Set :attr:`model`."""
        return self._set(model=value)

    def getModel(self) -> Any:
        """Return :attr:`model`, or ``None``."""
        return self._value("model")

    def setLoss(self: Self, value: Callable[..., Any] | Sequence[Callable[..., Any]]) -> Self:
        """Set :attr:`loss`."""
        return self._set(loss=value)

    def getLoss(self) -> Any:
        """Return :attr:`loss`, or ``None``."""
        return self._value("loss")

    def setLossWeights(self: Self, value: Sequence[float]) -> Self:
        """Set :attr:`lossWeights`."""
        return self._set(lossWeights=value)

    def getLossWeights(self) -> list[float] | None:
        """Return :attr:`lossWeights`, or ``None``."""
        value: list[float] | None = self._value("lossWeights")
        return value

    def setOptimizer(self: Self, value: Callable[..., Any]) -> Self:
        """Set :attr:`optimizer`."""
        return self._set(optimizer=value)

    def getOptimizer(self) -> Any:
        """Return :attr:`optimizer`, or ``None``."""
        return self._value("optimizer")

    def setLearningRate(self: Self, value: float) -> Self:
        """Set :attr:`learningRate`."""
        return self._set(learningRate=value)

    def getLearningRate(self) -> float | None:
        """Return :attr:`learningRate`, or ``None``."""
        value: float | None = self._value("learningRate")
        return value

    def setScheduler(self: Self, value: Callable[..., Any]) -> Self:
        """Set :attr:`scheduler`."""
        return self._set(scheduler=value)

    def getScheduler(self) -> Any:
        """Return :attr:`scheduler`, or ``None``."""
        return self._value("scheduler")

    def setMetrics(self: Self, value: Mapping[str, Callable[..., Any]]) -> Self:
        """Set :attr:`metrics`."""
        return self._set(metrics=value)

    def getMetrics(self) -> dict[str, Any]:
        """Return :attr:`metrics`."""
        return dict(self.getOrDefault(self.metrics))

    def setGradientClipNorm(self: Self, value: float) -> Self:
        """Set :attr:`gradientClipNorm`."""
        return self._set(gradientClipNorm=value)

    def getGradientClipNorm(self) -> float | None:
        """Return :attr:`gradientClipNorm`, or ``None``."""
        value: float | None = self._value("gradientClipNorm")
        return value


class HasTraining(RingParams, HasSeed):
    """How long, in what portions and in what order."""

    batchSize = declare(
        "batchSize",
        "rows per worker and step; the global batch is batchSize x numTrainWorkers rows.",
        to.integer("batchSize", 1),
    )
    epochs = declare("epochs", "how many times every training row is seen.", to.integer("epochs", 1))
    seed = declare(
        "seed",
        "seed of the validation split, of shuffling and of each worker's random generators.",
        to.integer("seed", -(2**63)),
    )
    shuffle = declare("shuffle", "whether rows are shuffled anew in each epoch.", to.boolean("shuffle"))
    threadsPerWorker = declare(
        "threadsPerWorker",
        "CPU threads that the framework uses in each worker; 0 leaves the framework's choice.",
        to.integer("threadsPerWorker", 0),
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(batchSize=32, epochs=1, seed=0, shuffle=True, threadsPerWorker=0)

    def setBatchSize(self: Self, value: int) -> Self:
        """Set :attr:`batchSize`."""
        return self._set(batchSize=value)

    def getBatchSize(self) -> int:
        """Return :attr:`batchSize`."""
        return int(self.getOrDefault(self.batchSize))

    def setEpochs(self: Self, value: int) -> Self:
        """Set :attr:`epochs`."""
        return self._set(epochs=value)

    def getEpochs(self) -> int:
        """Return :attr:`epochs`."""
        return int(self.getOrDefault(self.epochs))

    def setSeed(self: Self, value: int) -> Self:
        """Set :attr:`seed`."""
        return self._set(seed=value)

    def setShuffle(self: Self, value: bool) -> Self:
        """Set :attr:`shuffle`."""
        return self._set(shuffle=value)

    def getShuffle(self) -> bool:
        """Return :attr:`shuffle`."""
        return bool(self.getOrDefault(self.shuffle))

    def setThreadsPerWorker(self: Self, value: int) -> Self:
        """Set :attr:`threadsPerWorker`."""
        return self._set(threadsPerWorker=value)

    def getThreadsPerWorker(self) -> int:
        """Return :attr:`threadsPerWorker`."""
        return int(self.getOrDefault(self.threadsPerWorker))


class HasEarlyStopping(RingParams):
    """Which epoch is best, and when to stop before the last."""

    monitor = declare(
        "monitor",
        "the metric that decides which epoch's weights are kept and when to stop early, for example "
        "val_mae. Without validation the last epoch is kept, and a val_ metric means the training loss.",
        to.text("monitor"),
    )
    monitorMode = declare(
        "monitorMode",
        "'min' when a smaller monitored value is better, 'max' when a larger one is.",
        to.choice("monitorMode", "min", "max"),
    )
    patience = declare(
        "patience",
        "epochs without improvement of the monitored metric before training stops; 0 never stops early.",
        to.integer("patience", 0),
    )
    minDelta = declare(
        "minDelta",
        "how much the monitored metric must change, in its own unit, to count as improvement.",
        to.number("minDelta", 0.0),
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(monitor="val_loss", monitorMode="min", patience=0, minDelta=0.0)

    def setMonitor(self: Self, value: str) -> Self:
        """Set :attr:`monitor`."""
        return self._set(monitor=value)

    def getMonitor(self) -> str:
        """Return :attr:`monitor`."""
        return str(self.getOrDefault(self.monitor))

    def setMonitorMode(self: Self, value: str) -> Self:
        """Set :attr:`monitorMode`."""
        return self._set(monitorMode=value)

    def getMonitorMode(self) -> str:
        """Return :attr:`monitorMode`."""
        return str(self.getOrDefault(self.monitorMode))

    def setPatience(self: Self, value: int) -> Self:
        """Set :attr:`patience`."""
        return self._set(patience=value)

    def getPatience(self) -> int:
        """Return :attr:`patience`."""
        return int(self.getOrDefault(self.patience))

    def setMinDelta(self: Self, value: float) -> Self:
        """Set :attr:`minDelta`."""
        return self._set(minDelta=value)

    def getMinDelta(self) -> float:
        """Return :attr:`minDelta`."""
        return float(self.getOrDefault(self.minDelta))


class HasWorkers(RingParams):
    """Where training runs, and where its data lies."""

    numTrainWorkers = declare(
        "numTrainWorkers",
        "how many workers train together; each takes one Spark task slot for the whole fit.",
        to.integer("numTrainWorkers", 1),
    )
    store = declare(
        "store",
        "folder that the driver and every executor can read and write: training data, checkpoints and "
        "weights go through it, for example /Volumes/main/ml/ring-store, or /tmp/ring-store on one "
        "machine. Must be set.",
        to.text("store"),
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(numTrainWorkers=1)

    def setNumTrainWorkers(self: Self, value: int) -> Self:
        """Set :attr:`numTrainWorkers`."""
        return self._set(numTrainWorkers=value)

    def getNumTrainWorkers(self) -> int:
        """Return :attr:`numTrainWorkers`."""
        return int(self.getOrDefault(self.numTrainWorkers))

    def setStore(self: Self, value: str) -> Self:
        """Set :attr:`store`."""
        return self._set(store=value)

    def getStore(self) -> str | None:
        """Return :attr:`store`, or ``None``."""
        value: str | None = self._value("store")
        return value


class HasReporting(RingParams):
    """What people see while it trains, and what MLflow keeps."""

    verbose = declare(
        "verbose",
        "1 shows progress; 0 shows nothing. What workers print is in the executors' logs, after [rank].",
        to.integer("verbose", 0),
    )
    logToMLflow = declare(
        "logToMLflow",
        "whether a fit is logged as one MLflow run (in the active run if there is one). Without MLflow "
        "installed nothing is logged.",
        to.boolean("logToMLflow"),
    )
    experimentName = declare(
        "experimentName",
        "MLflow experiment of the run. Unset: MLflow's current one.",
        to.text("experimentName"),
    )
    runName = declare("runName", "name of the MLflow run. Unset: MLflow makes one up.", to.text("runName"))

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(verbose=1, logToMLflow=True)

    def setVerbose(self: Self, value: int) -> Self:
        """Set :attr:`verbose`."""
        return self._set(verbose=value)

    def getVerbose(self) -> int:
        """Return :attr:`verbose`."""
        return int(self.getOrDefault(self.verbose))

    def setLogToMLflow(self: Self, value: bool) -> Self:
        """Set :attr:`logToMLflow`."""
        return self._set(logToMLflow=value)

    def getLogToMLflow(self) -> bool:
        """Return :attr:`logToMLflow`."""
        return bool(self.getOrDefault(self.logToMLflow))

    def setExperimentName(self: Self, value: str) -> Self:
        """Set :attr:`experimentName`."""
        return self._set(experimentName=value)

    def getExperimentName(self) -> str | None:
        """Return :attr:`experimentName`, or ``None``."""
        value: str | None = self._value("experimentName")
        return value

    def setRunName(self: Self, value: str) -> Self:
        """Set :attr:`runName`."""
        return self._set(runName=value)

    def getRunName(self) -> str | None:
        """Return :attr:`runName`, or ``None``."""
        value: str | None = self._value("runName")
        return value
