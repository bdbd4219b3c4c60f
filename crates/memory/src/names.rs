//! Names of tenants and models as numbers, since vectors are filtered by numbers.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use crate::database::{Reading, Writing, first_row};
use crate::error::{MemoryError, Result};
use crate::schema::take_numbers;

/// Number of the empty name.
pub(crate) const NOBODY: u32 = 0;

/// Caches what it looked up: a name never changes its number.
#[derive(Debug, Default)]
pub(crate) struct Names {
    numbers: RwLock<HashMap<String, u32>>,
}

impl Names {
    /// Returns `None` if nothing was ever stored with this name.
    pub fn find(&self, database: &mut dyn Reading, name: &str) -> Result<Option<u32>> {
        if name.is_empty() {
            return Ok(Some(NOBODY));
        }
        let known = self.numbers.read().unwrap_or_else(PoisonError::into_inner).get(name).copied();
        if known.is_some() {
            return Ok(known);
        }
        let row = first_row(database, "SELECT id FROM names WHERE name = $1", &[name.into()])?;
        let number = row.map(|row| row[0].integer()).transpose()?.map(number).transpose()?;
        if let Some(number) = number {
            self.numbers.write().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), number);
        }
        Ok(number)
    }

    /// Returns the number of a name, and assigns one if it has none. Not cached, since the transaction may fail.
    pub fn find_or_add(&self, database: &mut dyn Writing, name: &str) -> Result<u32> {
        if let Some(number) = self.find(database.as_reading(), name)? {
            return Ok(number);
        }
        let id = take_numbers(database, "name", 1)?;
        // Another machine may have added it while this one waited for the counter.
        let sql = "INSERT INTO names (id, name) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
        database.execute(sql, &[id.into(), name.into()])?;
        let row = first_row(database, "SELECT id FROM names WHERE name = $1", &[name.into()])?;
        number(row.ok_or_else(|| MemoryError::damaged("a name was not stored"))?[0].integer()?)
    }

    /// Returns all names by number.
    pub fn all(database: &mut dyn Reading) -> Result<HashMap<u32, String>> {
        let mut all = HashMap::from([(NOBODY, String::new())]);
        database.rows("SELECT id, name FROM names", &[], &mut |row| {
            all.insert(number(row[0].integer()?)?, row[1].as_text()?.to_owned());
            Ok(())
        })?;
        Ok(all)
    }
}

fn number(id: i64) -> Result<u32> {
    u32::try_from(id).map_err(|_| MemoryError::damaged("a name has a number out of range"))
}
