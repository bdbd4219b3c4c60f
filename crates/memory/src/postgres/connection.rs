//! One connection, with our own deadlines: a server that was stopped keeps its connections open, and neither TCP nor its own
//! timeouts end the wait for it.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::connect::Connector;
use crate::error::{MemoryError, Result};

/// Maximum number of prepared statements of a connection. Statements with numbers in their text would accumulate.
const STATEMENTS_MAX: usize = 128;

/// The server's own limits, for abandoned statements: a lock of a machine that is gone would block all others.
const SETTINGS: &str =
    "SET statement_timeout = '60s'; SET lock_timeout = '20s'; SET idle_in_transaction_session_timeout = '30s'";

/// How long a server may take to accept a connection, or to answer a ping.
const GREETING_MAX: Duration = Duration::from_secs(5);

pub(super) struct Connection {
    /// Runs the connection while a caller waits for it. Taken when it is dropped.
    runtime: Option<Runtime>,
    client: Client,
    /// Prepared statements, which save a round trip.
    statements: HashMap<String, Statement>,
    patience: Duration,
}

impl Connection {
    pub fn open(connector: &Connector, patience: Duration) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(MemoryError::Thread)?;
        let connecting = async { timeout(patience.min(GREETING_MAX), connector.connect()).await };
        let client = match runtime.block_on(connecting) {
            Ok(connected) => connected?,
            Err(_) => return Err(MemoryError::Connect("the server does not answer".into())),
        };
        let connection = Self { runtime: Some(runtime), client, statements: HashMap::new(), patience };
        connection.run(SETTINGS)?;
        Ok(connection)
    }

    /// Begins a transaction whose statements may take `patience` each.
    pub fn begin(&mut self, patience: Duration) -> Result<()> {
        self.patience = patience.min(GREETING_MAX);
        let begun = self.run("BEGIN");
        self.patience = patience;
        begun
    }

    /// Commits the transaction. If the server does not confirm it, the outcome is unknown.
    pub fn commit(&mut self) -> Result<()> {
        self.run("COMMIT").map_err(|error| match error {
            MemoryError::Postgres(error) if error.code().is_some() => MemoryError::Postgres(error),
            error => MemoryError::Doubtful(error.to_string()),
        })
    }

    pub fn run(&self, sql: &str) -> Result<()> {
        self.wait_for(self.client.batch_execute(sql))
    }

    pub fn query(&mut self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        let statement = self.statement(sql)?;
        self.wait_for(self.client.query(&statement, params))
    }

    /// Runs a statement that is not worth preparing.
    pub fn query_once(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        self.wait_for(self.client.query(sql, params))
    }

    pub fn execute(&mut self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<u64> {
        let statement = self.statement(sql)?;
        self.wait_for(self.client.execute(&statement, params))
    }

    fn statement(&mut self, sql: &str) -> Result<Statement> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.wait_for(self.client.prepare(sql))?;
        if self.statements.len() >= STATEMENTS_MAX {
            self.statements.clear();
        }
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    fn wait_for<T>(&self, answer: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>) -> Result<T> {
        let Some(runtime) = &self.runtime else { return Err(MemoryError::Unavailable("no connection".into())) };
        let patience = self.patience;
        match runtime.block_on(async { timeout(patience, answer).await }) {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(MemoryError::Unavailable(format!("no answer within {patience:?}"))),
        }
    }
}

impl Drop for Connection {
    /// Closes the socket without waiting for the server, wherever this happens.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
