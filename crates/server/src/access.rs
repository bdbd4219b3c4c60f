//! Access control: API keys, their scopes and their limits.
//!
//! Keys are stored in a file that `ruvllm keys` writes and a running server reads again whenever it changes. Without
//! such a file, everybody may request answers. Administration always needs a key or the token of the local operator.

mod caller;
pub(crate) mod cors;
mod date;
mod gate;
pub(crate) mod guard;
mod key;
mod key_file;
mod limits;
mod local;
mod local_token;
pub(crate) mod pages;
mod reservation;
mod scope;
mod usage;

pub use caller::{Caller, Identity};
pub use date::Timestamp;
pub use gate::Gate;
pub use key::{KeyHash, NewKey};
pub use key_file::{KeyFile, KeyFileError, StoredKey};
pub(crate) use limits::Demand;
pub use limits::{Account, KeyStatus, Limits, Moment, Refusal};
pub use local_token::{LocalToken, LocalTokenError};
pub(crate) use reservation::Reservation;
pub use scope::{Scope, Scopes};
