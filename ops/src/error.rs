//! The reasons why a call cannot be planned. They are made on the failing path only.

use std::borrow::Cow;

/// The reason why there is no plan for a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The call is right, but there is no host kernel for it. The host may run it elsewhere (H29).
    #[error("no native kernel: {0}")]
    Unsupported(Cow<'static, str>),
    /// The call is wrong. The text says what was found, and what would be right.
    #[error("{0}")]
    Invalid(Cow<'static, str>),
}

/// The result of planning.
pub(crate) type Result<T, E = PlanError> = std::result::Result<T, E>;

/// The call is right, but there is no kernel for it.
#[cold]
pub(crate) fn unsupported<T>(reason: impl Into<Cow<'static, str>>) -> Result<T> {
    Err(PlanError::Unsupported(reason.into()))
}

/// The call is wrong.
#[cold]
pub(crate) fn invalid<T>(reason: impl Into<Cow<'static, str>>) -> Result<T> {
    Err(PlanError::Invalid(reason.into()))
}
