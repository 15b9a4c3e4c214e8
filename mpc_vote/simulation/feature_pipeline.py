"""What a model sees of a point: a fixed feature map, and perhaps public principal directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mpc_vote.data.dataset import Dataset, FloatArray
from mpc_vote.data.partition import Partition
from mpc_vote.learning.features.maps import FeatureMap, feature_map, unit
from mpc_vote.learning.features.projection import project


@dataclass(frozen=True)
class FeaturePipeline:
    """`map_name` is that of a feature map, None leaves points as they are; `dimensions` of what it
    gives are kept: the main directions of the public points, which cost no privacy. Then points may
    be brought to `unit_length`."""

    map_name: str | None = None
    dimensions: int | None = None
    unit_length: bool = False

    def of(self, public: FloatArray) -> FeatureMap:
        """The map itself, made with nothing but public points."""
        see: FeatureMap = (lambda x: x) if self.map_name is None else feature_map(self.map_name)
        if self.dimensions is None:
            return (lambda x: unit(see(x))) if self.unit_length else see
        keep = project(see(public), self.dimensions)
        if self.unit_length:
            return lambda x: unit(keep(see(x)))
        return lambda x: keep(see(x))

    def partition(self, partition: Partition) -> Partition:
        """The same points of the same owners as models see them."""
        see = self.of(partition.public.x)
        private = _mapped(see, partition.private)
        public, test = _mapped(see, (partition.public, partition.test))
        return Partition(private, public, test)


def _mapped(see: FeatureMap, datasets: Sequence[Dataset]) -> tuple[Dataset, ...]:
    return tuple(replace(dataset, x=see(dataset.x)) for dataset in datasets)
