"""What a device does to its delta before it is sent, so that the aggregator learns less from it.

Clipping and Gaussian noise: McMahan et al., Learning Differentially Private Recurrent Language Models,
arXiv:1710.06963, section 3.1: d <- d min(1, S / |d|) + N(0, (z S)^2), S `clip_update` and z
`noise_multiplier`; here each device adds its own noise (local noise), so that of a mean over K clients is z S
/ sqrt(K). Withholding: the delta of some weights is zero, such as that of the output bias, from which the
shares of a client's labels can be read (Reisser et al., Federated Mixture of Experts, arXiv:2107.06724,
appendix C).

The noise comes from the generator of the round, as every draw does, so that simulator and devices give the
same bits. That generator is seeded by the federation's seed: against an aggregator that knows the seed the
noise hides nothing. What is measured with it is what an eavesdropper, or an aggregator without the seed,
would see.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from edgefl.algorithms.robust import clip_delta
from edgefl.algorithms.server_optimizer import STATISTICS
from edgefl.config import suggest_nearest
from edgefl.errors import ConfigError
from edgefl.types import Array, Weights


def has_suffix(name: str, suffixes: Iterable[str]) -> bool:
    """Whether the last parts of a weight's name are one of these: `fc3/bias` ends with `bias` and with
    `fc3/bias`, not with `as`.
    """
    return any(name == suffix or name.endswith(f"/{suffix}") for suffix in suffixes)


def split_comma_list(text: str) -> tuple[str, ...]:
    """Return the entries of a comma list, blanks around them dropped."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True)
class UpdateSanitizer:
    """clip_update: largest L2 norm, 0 for any; noise_multiplier: standard deviation of the noise in units of
    it; withhold: suffixes.

    Raises ConfigError for noise without a norm to measure it by.
    """

    clip_update: float = 0.0
    noise_multiplier: float = 0.0
    withhold: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.noise_multiplier and not self.clip_update:
            raise ConfigError(
                f"noise_multiplier is {self.noise_multiplier} and clip_update 0, expected a norm: noise is "
                "in units of it"
            )

    def check(self, names: Collection[str]) -> None:
        """Raise ConfigError when something to be withheld is no weight of the model."""
        for suffix in self.withhold:
            if not any(has_suffix(name, (suffix,)) for name in names):
                raise ConfigError(
                    f"withhold has {suffix!r}, which ends no weight's name; "
                    f"{suggest_nearest(suffix, list(names))}"
                )

    def apply(self, delta: Weights, trained: Collection[str], rng: np.random.Generator) -> Weights:
        """Return what is sent of a delta: withheld weights at zero, the others together clipped, then each
        with noise.

        Only weights in `trained` get noise: what the model keeps frozen is no secret. With noise on, moving
        statistics are withheld, for a noisy variance may be negative.
        """
        withheld = (*self.withhold, *(STATISTICS if self.noise_multiplier else ()))
        unclipped: dict[str, Array] = {
            name: np.zeros_like(array) if has_suffix(name, withheld) else array
            for name, array in delta.items()
        }
        sent = dict(clip_delta(unclipped, self.clip_update))
        if self.noise_multiplier:
            sigma = self.noise_multiplier * self.clip_update
            for name in sorted(sent):
                if name in trained and not has_suffix(name, withheld):
                    noise = rng.standard_normal(sent[name].shape, dtype=np.float32) * np.float32(sigma)
                    sent[name] = np.asarray(sent[name] + noise, np.float32)
        return sent
