//! Serving gRPC, for routers that encode prompts themselves and for programs.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use ruvllm_server::listen::Bound;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Behind a router")]
pub struct GrpcFlags {
    /// Serve gRPC on this port: SGLang's protocol between routers and workers, and RuvLLM's own service. Keys, limits and
    /// TLS are those of HTTP
    #[arg(long, value_name = "PORT")]
    grpc_port: Option<u16>,
    /// Folder where routers find the tokenizer of the first generating model. It is written there, unless there is one
    /// already
    #[arg(long, value_name = "FOLDER", requires = "grpc_port")]
    grpc_tokenizer: Option<PathBuf>,
}

impl GrpcFlags {
    /// Binds the port, if there is one.
    pub async fn bind(&self, host: &str) -> Result<Option<Bound>> {
        match self.grpc_port {
            Some(port) => Ok(Some(Bound::bind(host, port, "--grpc-port").await?)),
            None => Ok(None),
        }
    }

    /// Returns the tokenizer's folder as routers are told of it.
    pub fn tokenizer(&self) -> Result<Option<PathBuf>> {
        let absolute = self.grpc_tokenizer.as_ref().map(std::path::absolute).transpose();
        absolute.context("--grpc-tokenizer is no path")
    }
}
