//! Variants of a host's code. `outrigger_tuner` has them measured by a worker of the host, and keeps the choice.

use outrigger_device_ops::{question, tuner};
use outrigger_tuner::{Answer, Asked, Question};

use crate::{Device, Result};

impl Device {
    /// Chooses one of several variants of a host's code for this device. Submits nothing. May take minutes, and holds
    /// meanwhile only what orders measurements.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if a variable of the environment has a value that is not allowed.
    pub fn choose(&self, mut asked: Asked) -> Result<Answer> {
        asked.question = Question {
            operator: asked.question.operator,
            class: asked.question.class,
            dtype: asked.question.dtype,
            code: asked.question.code,
            ..question(self.driver(), self.properties())
        };
        Ok(tuner()?.answer(&asked))
    }
}
