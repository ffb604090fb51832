"""Models in the manner of keras.io's examples: steps of their own, no `call`.

They are small, and have seeds for weights and random numbers, so that two runs
can be compared.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

WIDTH = 6
LATENT = 3
ROWS = 40
_random = np.random.default_rng(2)
IMAGES = _random.uniform(size=(ROWS, WIDTH)).astype("float32")
NUM_USERS = 30
NUM_ITEMS = 20
RATINGS = {
    "user": _random.integers(0, NUM_USERS, ROWS).astype("int32"),
    "item": _random.integers(0, NUM_ITEMS, ROWS).astype("int32"),
    "rating": _random.uniform(size=ROWS).astype("float32"),
}


def _dense(units: int, seed: int, **options: Any) -> layers.Dense:
    initializer = keras.initializers.RandomNormal(0.0, 0.3, seed=seed)
    return layers.Dense(units, kernel_initializer=initializer, **options)


def _network(name: str, sizes: list[int]) -> keras.Model:
    hidden = [_dense(n, seed=n, activation="relu") for n in sizes[1:-1]]
    last = _dense(sizes[-1], seed=9)
    return keras.Sequential([keras.Input(sizes[:1]), *hidden, last], name=name)


class Sampling(layers.Layer):
    """Layer that draws a point of the latent space."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs: Any) -> Any:
        mean, log_var = inputs
        noise = keras.random.normal(
            keras.ops.shape(mean), seed=self.seed_generator
        )
        return mean + keras.ops.exp(0.5 * log_var) * noise


class VAE(keras.Model):
    """A variational autoencoder."""

    def __init__(self, encoder: Any, decoder: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.encoder = encoder
        self.decoder = decoder
        self.total = keras.metrics.Mean(name="loss")
        self.kl = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.total, self.kl]

    def train_step(self, data: Any) -> dict[str, Any]:
        images = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            mean, log_var, z = self.encoder(images)
            error = keras.ops.mean(
                keras.ops.sum((images - self.decoder(z)) ** 2, axis=1)
            )
            kl = -0.5 * keras.ops.mean(
                keras.ops.sum(
                    1 + log_var - mean**2 - keras.ops.exp(log_var), axis=1
                )
            )
            loss = error + kl
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_weights, strict=True)
        )
        self.total.update_state(loss)
        self.kl.update_state(kl)
        return {"loss": self.total.result(), "kl_loss": self.kl.result()}


def vae() -> keras.Model:
    """Returns the compiled autoencoder."""
    images = keras.Input((WIDTH,))
    x = _dense(8, seed=1, activation="relu")(images)
    mean, log_var = _dense(LATENT, seed=2)(x), _dense(LATENT, seed=3)(x)
    z = Sampling()([mean, log_var])
    encoder = keras.Model(images, [mean, log_var, z], name="encoder")
    model = VAE(encoder, _network("decoder", [LATENT, 8, WIDTH]))
    model.compile(optimizer=keras.optimizers.Adam(0.01))
    return model


class GAN(keras.Model):
    """A generator against a discriminator, with an optimizer each."""

    def __init__(self, discriminator: Any, generator: Any) -> None:
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.seed_generator = keras.random.SeedGenerator(1337)

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.d_loss_metric, self.g_loss_metric]

    def latent(self, images: Any) -> Any:
        return keras.random.normal(
            (tf.shape(images)[0], LATENT), seed=self.seed_generator
        )

    def train_step(self, data: Any) -> dict[str, Any]:
        images = data[0] if isinstance(data, tuple) else data
        generated = self.generator(self.latent(images))
        combined = tf.concat([generated, images], axis=0)
        labels = tf.concat(
            [tf.ones_like(generated[:, :1]), tf.zeros_like(images[:, :1])], 0
        )
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(combined))
        self._apply(tape, d_loss, self.discriminator, self.d_optimizer)
        misleading = tf.zeros_like(images[:, :1])
        with tf.GradientTape() as tape:
            predictions = self.discriminator(
                self.generator(self.latent(images))
            )
            g_loss = self.loss_fn(misleading, predictions)
        self._apply(tape, g_loss, self.generator, self.g_optimizer)
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {each.name: each.result() for each in self.metrics}

    def _apply(self, tape: Any, loss: Any, network: Any, by: Any) -> None:
        weights = network.trainable_weights
        by.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )


def gan() -> keras.Model:
    """Returns the compiled pair of networks."""
    model = GAN(
        _network("discriminator", [WIDTH, 8, 1]),
        _network("generator", [LATENT, 8, WIDTH]),
    )
    model.compile(
        d_optimizer=keras.optimizers.Adam(0.01),
        g_optimizer=keras.optimizers.Adam(0.02),
        loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return model


class WGAN(GAN):
    """GAN with the Wasserstein distance, and a gradient penalty."""

    extra_steps = 2

    def gradient_penalty(self, real: Any, fake: Any) -> Any:
        alpha = keras.random.uniform(
            (tf.shape(real)[0], 1), seed=self.seed_generator
        )
        between = real + alpha * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            predictions = self.discriminator(between, training=True)
        gradients = tape.gradient(predictions, [between])[0]
        norm = tf.sqrt(tf.reduce_sum(tf.square(gradients), axis=1) + 1e-9)
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, data: Any) -> dict[str, Any]:
        real = data[0] if isinstance(data, tuple) else data
        for _ in range(self.extra_steps):
            with tf.GradientTape() as tape:
                fake = self.generator(self.latent(real), training=True)
                d_loss = (
                    tf.reduce_mean(self.discriminator(fake, training=True))
                    - tf.reduce_mean(self.discriminator(real, training=True))
                    + 10.0 * self.gradient_penalty(real, fake)
                )
            self._apply(tape, d_loss, self.discriminator, self.d_optimizer)
        with tf.GradientTape() as tape:
            fake = self.generator(self.latent(real), training=True)
            g_loss = -tf.reduce_mean(self.discriminator(fake, training=True))
        self._apply(tape, g_loss, self.generator, self.g_optimizer)
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": d_loss, "g_loss": g_loss}


def wgan_gp() -> keras.Model:
    """Returns the compiled pair with gradient penalty."""
    model = WGAN(
        _network("discriminator", [WIDTH, 8, 1]),
        _network("generator", [LATENT, 8, WIDTH]),
    )
    model.compile(
        d_optimizer=keras.optimizers.RMSprop(0.001),
        g_optimizer=keras.optimizers.RMSprop(0.001),
        loss_fn=None,
    )
    return model


class Towers(keras.Model):
    """Two towers that unpack the batch themselves, and build lazily."""

    def __init__(self) -> None:
        super().__init__()
        uniform = keras.initializers.RandomUniform
        self.users = layers.Embedding(NUM_USERS, 4, uniform(seed=1))
        self.items = layers.Embedding(NUM_ITEMS, 4, uniform(seed=2))
        self.dense = _dense(1, seed=3)

    def call(self, user: Any, item: Any) -> Any:
        rows = [self.users(user), self.items(item)]
        return self.dense(tf.concat(rows, axis=-1))[:, 0]

    def train_step(self, data: Any) -> dict[str, Any]:
        batch = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            predictions = self(batch["user"], batch["item"])
            loss = self.compute_loss(y=batch["rating"], y_pred=predictions)
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return self.compute_metrics(
            batch, batch["rating"], predictions, sample_weight=None
        )

    def test_step(self, data: Any) -> dict[str, Any]:
        batch = data[0] if isinstance(data, tuple) else data
        predictions = self(batch["user"], batch["item"])
        return self.compute_metrics(
            batch, batch["rating"], predictions, sample_weight=None
        )


def towers() -> keras.Model:
    """Returns the compiled towers."""
    model = Towers()
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


PROGRAMS: dict[str, tuple[Callable[[], keras.Model], Any]] = {
    "VAE": (vae, IMAGES),
    "GAN": (gan, IMAGES),
    "WGAN-GP": (wgan_gp, IMAGES),
    "two towers": (towers, RATINGS),
}
