"""Simulates the vibration of rotating machines with a rolling-element bearing, intact or with one fault.

All parameters were fixed before any model was trained on the data. Published values are used where they
exist:

- Fault frequencies: the bearings of the Case Western Reserve University (CWRU) Bearing Data Center,
  6205-2RS JEM (drive end) and 6203-2RS JEM (fan end), and its sample rate of 12 kHz.
- Fault vibration: each passage of a fault excites a decaying structural resonance. The intervals vary by 1%,
  and their errors accumulate. Randall and Antoni state 1 to 2%. Passages of a fault on the inner race or on a
  rolling element are weighted by the load distribution of Stribeck, as in McFadden and Smith.
- Valve impacts of a compressor are locked to the shaft and have no slip.
- Unbalance: velocities of zones A and B of ISO 10816-1 for small machines, up to 1.8 mm/s RMS.

The levels of noise, sources and faults have no published range. They are choices of this generator.

Sources: CWRU Bearing Data Center, Bearing Information. R. B. Randall and J. Antoni, Rolling element bearing
diagnostics - A tutorial, Mechanical Systems and Signal Processing 25, 2011. P. D. McFadden and J. D. Smith,
Model for the vibration produced by a single point defect in a rolling element bearing, Journal of Sound and
Vibration 96, 1984. ISO 10816-1:1995, annex B.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgefl.base.types import Array

SAMPLE_RATE_HZ = 12_000
SENSOR_RANGE_G = 8.0
SENSOR_STEP_G = 2.0**-12
"""Step of a 16-bit sensor with a range of ±8 g."""
GRAVITY_MM_S2 = 9806.65
LINE_FREQUENCY_HZ = 50.0

FAULTS = ("inner race", "outer race", "rolling element")
"""Label 1 is the first fault. Label 0 is an intact bearing."""
KINDS = ("motor", "gearbox", "compressor", "pump")

SPEED_HZ = (20.0, 50.0)
SPEED_SPREAD = 0.03
"""Largest relative difference between the speed of a recording and the nominal speed."""
SPEED_RIPPLE = 0.005
"""Relative amplitude of the speed fluctuation within a recording."""
RIPPLE_PERIOD_S = (0.5, 2.0)
LOAD = (0.5, 1.0)
LOAD_SPREAD = 0.2
NOISE_G = (0.02, 0.1)
NOISE_SPREAD_DB = 1.0
UNBALANCE_MM_S = (0.3, 1.8)
HARMONIC_SHARE = ((0.1, 0.6), (0.05, 0.3))
"""Velocity at two and three times the shaft speed, relative to the unbalance."""
CORNER_HZ = (2000.0, 6000.0)
RESONANCE_HZ = (1500.0, 5000.0)
DAMPING = (0.03, 0.06)
RESONANCE_GAIN = (1.0, 4.0)
WHITE_POWER = 0.05
SOURCE_LEVEL_DB = (0.0, 6.0)
SEVERITY_DB = (-6.0, 6.0)
TEETH = (17, 67)
IMPACTS = (1, 2, 4)
VANES = (5, 7)
MESH_HARMONICS = 3
MESH_MODULATION = 0.3
MAX_MESH_HZ = 5500.0
CAVITATION_BANDWIDTH = 0.2
CAVITATION_MODULATION = 0.5
FAULT_SLIP = 0.01
"""Standard deviation of the interval between impulses of a fault, relative to the interval."""
IMPULSE_SPREAD = 0.1
"""Standard deviation of the strength of impulses, relative to the mean."""
STRIBECK_EXPONENT = 1.5
"""Exponent of the load distribution of ball bearings."""
DECAY_TIME_CONSTANTS = 6

Signal = NDArray[np.float64]


@dataclass(frozen=True)
class Bearing:
    """Fault frequencies of a bearing, in multiples of the shaft speed.

    Attributes:
        name: designation of the manufacturer.
        inner_race: passages of rolling elements over a point of the inner race.
        outer_race: passages of rolling elements over a point of the outer race.
        rolling_element: contacts of a point of a rolling element with both races, twice its spin.
        cage: revolutions of the cage.
    """

    name: str
    inner_race: float
    outer_race: float
    rolling_element: float
    cage: float


BEARINGS = (
    Bearing(name="6205-2RS JEM", inner_race=5.4152, outer_race=3.5848, rolling_element=4.7135, cage=0.39828),
    Bearing(name="6203-2RS JEM", inner_race=4.9469, outer_race=3.0530, rolling_element=3.9874, cage=0.3817),
)


@dataclass(frozen=True)
class RotatingMachine:
    """The constant properties of a machine.

    Attributes:
        kind: a name of `KINDS`. It selects the source, the normal vibration beside the shaft. The source of a
            motor is magnetic hum. The source of a gearbox is the gear mesh. The source of a compressor is
            impacts of its valves. The source of a pump is cavitation.
        bearing: the monitored bearing.
        speed_hz: nominal shaft speed in revolutions per second.
        load: nominal load, relative to the rated load.
        noise_g: RMS of the broadband noise in g.
        corner_hz: corner frequency of the noise. Its power falls above.
        resonance_hz: structural resonance that the bearing excites.
        damping: damping ratio of the resonances.
        resonance_gain: power that the resonance adds to the noise, relative to the noise without it.
        harmonics_g: acceleration amplitudes in g at one, two and three times the shaft speed, at nominal
            speed.
        phases: phases of these harmonics in radians.
        source_count: events of the source per revolution: teeth, impacts or vanes. 0 for a motor.
        source_hz: resonance that the impacts excite, or centre of the cavitation band.
        source_level_db: RMS of the source at rated load, relative to the broadband noise, in dB.
    """

    kind: str
    bearing: Bearing
    speed_hz: float
    load: float
    noise_g: float
    corner_hz: float
    resonance_hz: float
    damping: float
    resonance_gain: float
    harmonics_g: tuple[float, ...]
    phases: tuple[float, ...]
    source_count: int
    source_hz: float
    source_level_db: float


@dataclass(frozen=True)
class OperatingPoint:
    """The properties of one recording.

    Attributes:
        speed_hz: mean shaft speed in revolutions per second.
        load: load, relative to the rated load.
        noise_g: RMS of the broadband noise in g.
        fault: 0 for an intact bearing, otherwise the number of the fault in `FAULTS`, from 1.
        severity_db: RMS of the fault vibration at rated load, relative to the broadband noise, in dB.
    """

    speed_hz: float
    load: float
    noise_g: float
    fault: int
    severity_db: float


def draw_machine(number: int, rng: np.random.Generator) -> RotatingMachine:
    """Draw the properties of a machine.

    Args:
        number: number of the machine, from 0. Eight consecutive numbers have each kind with each bearing.

    Returns:
        The machine.
    """
    kind = KINDS[number % len(KINDS)]
    speed_hz = rng.uniform(*SPEED_HZ)
    load = rng.uniform(*LOAD)
    noise_g = float(np.exp(rng.uniform(*np.log(NOISE_G))))
    unbalance = rng.uniform(*UNBALANCE_MM_S)
    velocities = (unbalance, *(unbalance * rng.uniform(*share) for share in HARMONIC_SHARE))
    source_counts = {
        "motor": 0,
        "gearbox": int(rng.integers(TEETH[0], TEETH[1] + 1)),
        "compressor": int(rng.choice(IMPACTS)),
        "pump": int(rng.integers(VANES[0], VANES[1] + 1)),
    }
    return RotatingMachine(
        kind=kind,
        bearing=BEARINGS[number // len(KINDS) % len(BEARINGS)],
        speed_hz=speed_hz,
        load=load,
        noise_g=noise_g,
        corner_hz=rng.uniform(*CORNER_HZ),
        resonance_hz=rng.uniform(*RESONANCE_HZ),
        damping=rng.uniform(*DAMPING),
        resonance_gain=rng.uniform(*RESONANCE_GAIN),
        harmonics_g=tuple(
            2**0.5 * 2 * np.pi * order * speed_hz * velocity / GRAVITY_MM_S2
            for order, velocity in enumerate(velocities, start=1)
        ),
        phases=tuple(rng.uniform(0, 2 * np.pi, len(velocities)).tolist()),
        source_count=source_counts[kind],
        source_hz=rng.uniform(*RESONANCE_HZ),
        source_level_db=rng.uniform(*SOURCE_LEVEL_DB),
    )


def draw_operating_point(machine: RotatingMachine, fault: int, rng: np.random.Generator) -> OperatingPoint:
    """Draw speed, load, noise and severity of a recording.

    Args:
        fault: 0 for an intact bearing, otherwise the number of the fault in `FAULTS`, from 1.

    Returns:
        The operating point. Its severity has no effect on an intact bearing.
    """
    return OperatingPoint(
        speed_hz=machine.speed_hz * rng.uniform(1 - SPEED_SPREAD, 1 + SPEED_SPREAD),
        load=machine.load * rng.uniform(1 - LOAD_SPREAD, 1 + LOAD_SPREAD),
        noise_g=machine.noise_g * _to_ratio(rng.uniform(-NOISE_SPREAD_DB, NOISE_SPREAD_DB)),
        fault=fault,
        severity_db=rng.uniform(*SEVERITY_DB),
    )


def simulate_vibration(
    machine: RotatingMachine, point: OperatingPoint, num_samples: int, rng: np.random.Generator
) -> Array:
    """Simulate one recording of the acceleration sensor at the bearing.

    Values are rounded to the step of the sensor. This also removes the last-bit differences between the sine
    and exponential functions of different processors.

    Args:
        num_samples: number of samples at 12 kHz.

    Returns:
        Acceleration in g, shape (num_samples,), float32, multiples of 1/4096 g within ±8 g.
    """
    angle = _draw_shaft_angle(point.speed_hz, num_samples, rng)
    vibration = _sum_harmonics(machine, point, angle)
    vibration += _simulate_noise(machine, point, num_samples, rng)
    source = _simulate_source(machine, angle, rng)
    vibration += _scale_to(source, point.noise_g * point.load * _to_ratio(machine.source_level_db))
    if point.fault:
        fault = _simulate_fault(machine, point.fault, angle, rng)
        vibration += _scale_to(fault, point.noise_g * point.load * _to_ratio(point.severity_db))
    steps = np.rint(vibration / SENSOR_STEP_G) * SENSOR_STEP_G
    return np.clip(steps, -SENSOR_RANGE_G, SENSOR_RANGE_G - SENSOR_STEP_G).astype(np.float32)


def _to_ratio(level_db: float) -> float:
    return float(10 ** (level_db / 20))


def _scale_to(signal: Signal, rms: float) -> Signal:
    return signal * (rms / float(np.sqrt(np.mean(signal**2))))


def _draw_shaft_angle(speed_hz: float, num_samples: int, rng: np.random.Generator) -> Signal:
    """Return the shaft angle at each sample in radians. The speed has a sinusoidal ripple."""
    time = np.arange(num_samples) / SAMPLE_RATE_HZ
    ripple = 2 * np.pi / rng.uniform(*RIPPLE_PERIOD_S)
    start, phase = rng.uniform(0, 2 * np.pi, 2)
    swing = (np.cos(phase) - np.cos(ripple * time + phase)) * SPEED_RIPPLE / ripple
    return np.asarray(start + 2 * np.pi * speed_hz * (time + swing))


def _sum_harmonics(machine: RotatingMachine, point: OperatingPoint, angle: Signal) -> Signal:
    """Return the shaft harmonics in g. The force of an unbalance grows with the square of the speed."""
    growth = (point.speed_hz / machine.speed_hz) ** 2
    harmonics = zip(machine.harmonics_g, machine.phases, strict=True)
    return np.asarray(
        sum(growth * g * np.cos(order * angle + phase) for order, (g, phase) in enumerate(harmonics, start=1))
    )


def _simulate_noise(
    machine: RotatingMachine, point: OperatingPoint, num_samples: int, rng: np.random.Generator
) -> Signal:
    """Return coloured noise in g: a low-pass with a hump at the resonance, over a white floor."""
    hz = np.fft.rfftfreq(num_samples, 1 / SAMPLE_RATE_HZ)
    hump = 1 / (1 + ((hz - machine.resonance_hz) / (machine.damping * machine.resonance_hz)) ** 2)
    power = (1 + machine.resonance_gain * hump) / (1 + (hz / machine.corner_hz) ** 2) + WHITE_POWER
    return _filter_noise(np.sqrt(power / power.mean()) * point.noise_g, num_samples, rng)


def _filter_noise(gain: Signal, num_samples: int, rng: np.random.Generator) -> Signal:
    spectrum = np.fft.rfft(rng.standard_normal(num_samples)) * gain
    return np.asarray(np.fft.irfft(spectrum, num_samples))


def _simulate_source(machine: RotatingMachine, angle: Signal, rng: np.random.Generator) -> Signal:
    """Return the vibration of the source, without scale."""
    if machine.kind == "gearbox":
        return _sum_mesh(machine, angle, rng)
    if machine.kind == "compressor":
        angles, strengths = _draw_impulses(machine.source_count, 0.0, angle, rng)
        return _excite(machine.source_hz, machine.damping, angles, strengths, angle)
    if machine.kind == "pump":
        hz = np.fft.rfftfreq(len(angle), 1 / SAMPLE_RATE_HZ)
        deviation = (hz - machine.source_hz) / (CAVITATION_BANDWIDTH * machine.source_hz)
        noise = _filter_noise(np.exp(-(deviation**2) / 2), len(angle), rng)
        return np.asarray(noise * (1 + CAVITATION_MODULATION * np.cos(machine.source_count * angle)))
    time = np.arange(len(angle)) / SAMPLE_RATE_HZ
    hum = np.cos(2 * np.pi * 2 * LINE_FREQUENCY_HZ * time + rng.uniform(0, 2 * np.pi))
    return np.asarray(hum)


def _sum_mesh(machine: RotatingMachine, angle: Signal, rng: np.random.Generator) -> Signal:
    """Return the harmonics of the gear mesh below 5.5 kHz, modulated by the shaft."""
    phases = rng.uniform(0, 2 * np.pi, MESH_HARMONICS)
    mesh = np.zeros(len(angle))
    for order, phase in enumerate(phases, start=1):
        if order * machine.source_count * machine.speed_hz < MAX_MESH_HZ:
            mesh += np.cos(order * machine.source_count * angle + phase) / order
    return np.asarray(mesh * (1 + MESH_MODULATION * np.cos(angle)))


def _simulate_fault(machine: RotatingMachine, fault: int, angle: Signal, rng: np.random.Generator) -> Signal:
    """Return the vibration of a bearing fault, without scale."""
    bearing = machine.bearing
    per_revolution = (bearing.inner_race, bearing.outer_race, bearing.rolling_element)[fault - 1]
    turns = (1.0, 0.0, bearing.cage)[fault - 1]  # of the fault through the load zone, per revolution
    angles, strengths = _draw_impulses(per_revolution, FAULT_SLIP, angle, rng)
    if turns:
        load_zone = np.cos(turns * angles + rng.uniform(0, 2 * np.pi))
        strengths = strengths * np.maximum(load_zone, 0) ** STRIBECK_EXPONENT
    return _excite(machine.resonance_hz, machine.damping, angles, strengths, angle)


def _draw_impulses(
    per_revolution: float, slip: float, angle: Signal, rng: np.random.Generator
) -> tuple[Signal, Signal]:
    """Return the shaft angles of impulses and their strengths, 1 on average.

    The slip is the standard deviation of an interval, relative to the interval. Its errors accumulate.
    """
    interval = 2 * np.pi / per_revolution
    count = int((angle[-1] - angle[0]) / interval * (1 + 2 * slip)) + 2
    steps = interval * (1 + slip * rng.standard_normal(count))
    strengths = 1 + IMPULSE_SPREAD * rng.standard_normal(count)
    angles = angle[0] + interval * rng.uniform(-1, 0) + np.cumsum(steps)
    inside = (angles > angle[0]) & (angles < angle[-1])
    return angles[inside], strengths[inside]


def _excite(resonance_hz: float, damping: float, angles: Signal, strengths: Signal, angle: Signal) -> Signal:
    """Return the sum of decaying oscillations that start at the angles of impulses."""
    starts = np.interp(angles, angle, np.arange(len(angle)))  # in samples
    decay = 2 * np.pi * damping * resonance_hz / SAMPLE_RATE_HZ
    length = int(DECAY_TIME_CONSTANTS / decay) + 1
    samples = np.ceil(starts).astype(np.int64)[:, None] + np.arange(length)
    age = samples - starts[:, None]
    turn = 2 * np.pi * resonance_hz * np.sqrt(1 - damping**2) / SAMPLE_RATE_HZ
    response = strengths[:, None] * np.exp(-decay * age) * np.sin(turn * age)
    inside = samples < len(angle)
    return np.bincount(samples[inside], response[inside], minlength=len(angle)).astype(np.float64)
