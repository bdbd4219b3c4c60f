//! Groups of command line flags that several commands share, one file each. A group turns its flags into a validated value;
//! what is done with the value is the business of the commands.

pub mod adapter;
pub mod backend;
pub mod draft_model;
pub mod duration;
pub mod experts;
pub mod kv;
pub mod memory;
pub mod model;
pub mod pack;
pub mod reward;
pub mod sampling;
pub mod scope;
pub mod server;
pub mod session;
pub mod size;
pub mod speculation;
pub mod witness;
