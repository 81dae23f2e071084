"""The masked rounds of docs/protocol.md, written from that page alone. Nothing of edgefl is imported."""

import base64
import importlib.util
import json
import math
import secrets
import struct
import sys
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

SPEC = importlib.util.spec_from_file_location(
    "edgefl_tests_foreign_plain", Path(__file__).with_name("foreign_device.py")
)
plain = sys.modules.setdefault(SPEC.name, importlib.util.module_from_spec(SPEC))
SPEC.loader.exec_module(plain)

PRIME = 2**521 - 1
SAMPLES = 7


def encode_base64(content):
    return base64.b64encode(content).decode()


def split_secret(secret, places, threshold):
    """Return Shamir's shares by place, 66 bytes each."""
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {
        p: (sum(c * pow(p, i, PRIME) for i, c in enumerate(coefficients)) % PRIME).to_bytes(66)
        for p in places
    }


def compute_digest(route, share):
    return plain.hashlib.sha256(route + b"\n" + share).digest()


def add_mask(vector, seed, sign):
    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(8 * len(vector)))
    return [
        (value + sign * mask) % 2**64
        for value, mask in zip(vector, struct.unpack(f"<{len(vector)}Q", stream), strict=True)
    ]


class MaskedForeignDevice(plain.ForeignDevice):
    """A device that supports masked rounds."""

    def answer(self, task):
        if not task["codec"].endswith("+masked") or task["phase"] == "personalize":
            self.personalize(task)
            return
        steps = {"share": self.share, "mask": self.mask, "agree": self.agree, "unmask": self.unmask}
        if task["phase"] not in steps:
            self.deliver(task, self.advertise(task), {})
        else:
            (sha256,) = task["models"].values()
            metrics = {"loss": 0.25} if task["phase"] == "mask" else {}
            self.deliver(task, steps[task["phase"]](self.fetch(sha256)), metrics)

    def personalize(self, task):
        self.deliver(task, plain.encode_safetensors({}), {"accuracy_mixture": 0.5})

    def advertise(self, task):
        """Draw keys and use small numbers as the trained deltas."""
        self.vector = []
        self.lists = None
        for _, sha256 in sorted(task["models"].items()):
            for _, (_, _, content) in sorted(plain.safetensors(self.fetch(sha256)).items()):
                deltas = [1e-3 * math.sin(i + 1) for i in range(len(content) // 4)]
                self.vector += [round(delta * 2**24) * SAMPLES % 2**64 for delta in deltas]
            self.vector.append(SAMPLES)
        scalars = [[name, float(value)] for name, value in sorted(task["scalars"].items())]
        context_fields = [
            self.federation,
            task["session"],
            task["round"],
            task["phase"],
            task["nonce"].partition("-")[0],
            task["plan"],
            sorted(map(list, task["models"].items())),
            scalars,
            task["seed"],
        ]
        self.context = plain.hashlib.sha256(json.dumps(context_fields).encode()).hexdigest()
        self.seal_key = X25519PrivateKey.generate()
        self.mask_key = X25519PrivateKey.generate()
        self.seed = secrets.token_bytes(32)
        keys = (encode_base64(key.public_key().public_bytes_raw()) for key in (self.seal_key, self.mask_key))
        message = {
            "client_id": self.client_id,
            "context": self.context,
            **dict(zip(("seal", "mask"), keys, strict=True)),
        }
        message["seed"] = encode_base64(plain.hashlib.sha256(self.seed).digest())
        self.advertised = json.loads(self.sign("Advertised", message))
        return json.dumps(self.advertised).encode()

    def agree_on_key(self, private, public, purpose):
        secret = private.exchange(X25519PublicKey.from_public_bytes(base64.b64decode(public)))
        return HKDF(SHA256(), 32, None, f"{self.binding} {purpose}".encode()).derive(secret)

    def share(self, blob):
        self.others = {}
        self.signing_keys = {}
        for line in blob.split(b"\n"):
            message_text, key, voucher = line.split(b"\t")
            message = json.loads(message_text)
            assert message["context"] == self.context
            if self.enrolment:
                authority = x509.load_pem_x509_certificate(self.enrolment["ca"].encode()).public_key()
                until, _, signature = voucher.decode().partition(".")
                assert time.time() < int(until)
                vouched = (
                    f"edgefl/v2 {message['client_id']} signs with {key.decode()} until {until}\n".encode()
                )
                authority.verify(base64.b64decode(signature), vouched, ec.ECDSA(SHA256()))
                signed_text = plain.signed_bytes("Advertised", message, self.federation, message["client_id"])
                Ed25519PublicKey.from_public_bytes(base64.b64decode(key)).verify(
                    base64.b64decode(message["signature"]), signed_text
                )
            self.others[message["client_id"]] = message
            self.signing_keys[message["client_id"]] = key.decode()
        assert self.others[self.client_id] == self.advertised
        self.binding = plain.hashlib.sha256(f"{self.context}\n".encode() + blob).hexdigest()
        ids = sorted(self.others)
        assert list(self.others) == ids
        self.threshold = math.ceil(2 * len(ids) / 3)
        places = range(1, len(ids) + 1)
        of_key = split_secret(self.mask_key.private_bytes_raw(), places, self.threshold)
        of_seed = split_secret(self.seed, places, self.threshold)
        sealed = b""
        for place, other in enumerate(ids, 1):
            nonce = secrets.token_bytes(12)
            key = self.agree_on_key(self.seal_key, self.others[other]["seal"], "seal")
            route = f"{self.binding}\n{self.client_id}\n{other}".encode()
            sealed += (
                compute_digest(route, of_key[place])
                + compute_digest(route, of_seed[place])
                + nonce
                + AESGCM(key).encrypt(nonce, of_key[place] + of_seed[place], route)
            )
        assert len(sealed) == 224 * len(ids)
        return sealed

    def mask(self, blob):
        line, _, content = blob.partition(b"\n")
        ids = line.decode().split(" ")
        self.inbox = {other: content[224 * i : 224 * (i + 1)] for i, other in enumerate(ids)}
        assert self.client_id in ids
        assert len(ids) >= self.threshold
        self.opened = {}
        for other in ids:
            route = f"{self.binding}\n{other}\n{self.client_id}".encode()
            message = self.inbox[other]
            both = AESGCM(self.agree_on_key(self.seal_key, self.others[other]["seal"], "seal")).decrypt(
                message[64:76], message[76:], route
            )
            assert message[:64] == compute_digest(route, both[:66]) + compute_digest(route, both[66:])
            self.opened[other] = both
        vector = add_mask(self.vector, self.seed, 1)
        for other in ids:
            if other != self.client_id:
                vector = add_mask(
                    vector,
                    self.agree_on_key(self.mask_key, self.others[other]["mask"], "mask"),
                    1 if other > self.client_id else -1,
                )
        return struct.pack(f"<{len(vector)}Q", *vector)

    def agree(self, blob):
        shared, received = (line.decode().split(" ") for line in blob.split(b"\n"))
        assert shared == list(self.inbox)
        assert set(received) <= set(shared)
        assert self.client_id in received
        assert len(received) >= self.threshold
        self.received = received
        self.lists = plain.hashlib.sha256(blob).hexdigest()
        message = {"client_id": self.client_id, "binding": self.binding, "lists": self.lists}
        return self.sign("Agreed", message).encode()

    def unmask(self, blob):
        shared, received, *lines = blob.split(b"\n")
        if self.lists is None:
            self.agree(shared + b"\n" + received)
        assert plain.hashlib.sha256(shared + b"\n" + received).hexdigest() == self.lists
        agreed = [json.loads(line) for line in lines]
        ids = [each["client_id"] for each in agreed]
        assert ids == sorted(set(ids))
        assert len(ids) >= self.threshold
        for each in agreed:
            assert each["client_id"] in self.received
            assert (each["binding"], each["lists"]) == (self.binding, self.lists)
            if self.enrolment:
                signed_text = plain.signed_bytes("Agreed", each, self.federation, each["client_id"])
                key = base64.b64decode(self.signing_keys[each["client_id"]])
                Ed25519PublicKey.from_public_bytes(key).verify(
                    base64.b64decode(each["signature"]), signed_text
                )
        revealed = b""
        for other, both in sorted(self.opened.items()):
            revealed += both[66:] if other in self.received else both[:66]
        return revealed
