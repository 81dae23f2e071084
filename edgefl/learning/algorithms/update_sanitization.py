"""Changes that a device makes to its delta before it sends the update, to reveal less to the aggregator.

A device clips its delta and adds Gaussian noise, d <- d min(1, S / |d|) + N(0, (z S)^2). S is `clip_update`
and z is `noise_multiplier`. Each device adds its own noise (local noise), so the noise of a mean over K
clients is z S / sqrt(K).

A device withholds some weights by sending a delta of zero for them. For example, the delta of the output bias
reveals the shares of a client's labels.

The noise comes from the generator of the round, so the simulator and the devices give the same bits. That
generator is seeded by the federation's seed. The noise therefore hides nothing from an aggregator that knows
the seed. It shows what an eavesdropper, or an aggregator without the seed, would see.

Source: clipping and noise: McMahan et al., Learning Differentially Private Recurrent Language Models,
arXiv:1710.06963, section 3.1. Withholding: Reisser et al., Federated Mixture of Experts, arXiv:2107.06724,
appendix C.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from edgefl.base.errors import ConfigError
from edgefl.base.options import suggest_nearest
from edgefl.base.types import Array, Weights
from edgefl.learning.algorithms.robust import clip_delta
from edgefl.learning.algorithms.server_optimizer import STATISTICS


def has_suffix(name: str, suffixes: Iterable[str]) -> bool:
    """Return whether the last parts of a weight's name equal one of the suffixes.

    For example, `fc3/bias` ends with `bias` and with `fc3/bias`, but not with `as`.

    Args:
        name: name of the weight, with parts separated by slashes.
        suffixes: one or more whole parts each, such as `bias` or `fc3/bias`.
    """
    return any(name == suffix or name.endswith(f"/{suffix}") for suffix in suffixes)


def split_comma_list(text: str) -> tuple[str, ...]:
    """Return the entries of a comma-separated list without surrounding blanks."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True)
class UpdateSanitizer:
    """Clips a delta, adds noise to it, and withholds some of its weights.

    Attributes:
        clip_update: maximum L2 norm of the delta. 0 disables the clipping.
        noise_multiplier: standard deviation of the noise as a multiple of `clip_update`. 0 disables the
            noise.
        withhold: suffixes of the names of withheld weights.

    Raises:
        ConfigError: there is noise but no `clip_update`.
    """

    clip_update: float = 0.0
    noise_multiplier: float = 0.0
    withhold: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.noise_multiplier and not self.clip_update:
            raise ConfigError(
                f"noise_multiplier is {self.noise_multiplier} and clip_update 0, expected a norm above 0: "
                "noise is a multiple of it"
            )

    def check(self, names: Collection[str]) -> None:
        """Raise ConfigError if an entry of `withhold` matches no weight of the model.

        Args:
            names: the names of the model's weights.
        """
        for suffix in self.withhold:
            if not any(has_suffix(name, (suffix,)) for name in names):
                raise ConfigError(
                    f"withhold has {suffix!r}, but no weight's name ends with it; "
                    f"{suggest_nearest(suffix, list(names))}"
                )

    def apply(self, delta: Weights, trained: Collection[str], rng: np.random.Generator) -> Weights:
        """Return the delta that is sent.

        Withheld weights are zero. The other weights are clipped together, and then each gets noise. Only
        trained weights get noise, because frozen weights are not secret. With noise, moving statistics are
        withheld as well, because a noisy variance may be negative.

        Args:
            delta: the delta of one model.
            trained: names of the weights that the client trained.
            rng: draws the noise.
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
