//! Whether a file is for us alone to change. Configuration runs commands, keys open the server and the memory: what others can
//! write decides nothing here.

use std::path::Path;

use crate::error::StoreError;

/// Fails if the file belongs to another user (besides the administrator), or others may write to it. One that is not there is fine.
///
/// The folder does not matter: whoever can write there can put another file in this one's place, but it is theirs, and so is a link.
pub fn require_private(path: &Path) -> Result<(), StoreError> {
    rules::check_link(path)?;
    rules::check(path, &[rules::owner, rules::mode])
}

/// Fails if everybody may write to the file. For one that somebody has named, and so trusts, wherever it lies.
pub fn require_unwritable(path: &Path) -> Result<(), StoreError> {
    rules::check(path, &[rules::mode])
}

#[cfg(unix)]
mod rules {
    use std::fs::{self, Metadata};
    use std::io;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use crate::error::StoreError;

    const OTHERS: u32 = 0o002;
    const GROUP: u32 = 0o020;

    /// What is wrong, and the command that helps.
    type Rule = fn(&Metadata) -> Option<(String, &'static str)>;

    pub(super) fn check(path: &Path, rules: &[Rule]) -> Result<(), StoreError> {
        check_metadata(path, fs::metadata(path), rules)
    }

    /// The link itself, where the path is one.
    pub(super) fn check_link(path: &Path) -> Result<(), StoreError> {
        check_metadata(path, fs::symlink_metadata(path), &[owner])
    }

    fn check_metadata(path: &Path, found: io::Result<Metadata>, rules: &[Rule]) -> Result<(), StoreError> {
        let metadata = match found {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(StoreError::io("read", path)(error)),
        };
        match rules.iter().find_map(|rule| rule(&metadata)) {
            Some((why, command)) => Err(StoreError::OthersCanWrite { path: path.to_owned(), why, command }),
            None => Ok(()),
        }
    }

    pub(super) fn owner(metadata: &Metadata) -> Option<(String, &'static str)> {
        let owner = metadata.uid();
        let is_trusted = owner == 0 || owner == rustix::process::geteuid().as_raw();
        (!is_trusted).then(|| (format!("it belongs to another user, with the id {owner}"), "chown -h $(id -u)"))
    }

    pub(super) fn mode(metadata: &Metadata) -> Option<(String, &'static str)> {
        // Many systems give each user a group of the same number that nobody else is in, and make files that it may write.
        let is_private_group = metadata.gid() == metadata.uid();
        if metadata.mode() & OTHERS != 0 {
            Some(("all users may write to it".to_owned(), "chmod go-w"))
        } else if metadata.mode() & GROUP != 0 && !is_private_group {
            Some((format!("the group {} may write to it", metadata.gid()), "chmod g-w"))
        } else {
            None
        }
    }
}

/// Elsewhere there are no modes to look at.
#[cfg(not(unix))]
mod rules {
    use std::fs::Metadata;
    use std::path::Path;

    use crate::error::StoreError;

    type Rule = fn(&Metadata) -> Option<(String, &'static str)>;

    pub(super) fn check(_: &Path, _: &[Rule]) -> Result<(), StoreError> {
        Ok(())
    }

    pub(super) fn check_link(_: &Path) -> Result<(), StoreError> {
        Ok(())
    }

    pub(super) fn owner(_: &Metadata) -> Option<(String, &'static str)> {
        None
    }

    pub(super) fn mode(_: &Metadata) -> Option<(String, &'static str)> {
        None
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_others_may_write_is_refused_with_the_command_that_helps() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        require_private(&file).expect("what is not there may come");
        fs::write(&file, "").unwrap();
        for (mode, is_fine) in [(0o600, true), (0o644, true), (0o646, false), (0o666, false)] {
            set(&file, mode);
            assert_eq!(require_private(&file).is_ok(), is_fine, "{mode:o}");
            assert_eq!(require_unwritable(&file).is_ok(), is_fine, "{mode:o}");
        }
        let said = require_private(&file).unwrap_err().to_string();
        assert!(said.contains(&format!("chmod go-w {}", file.display())), "{said}");
    }

    #[test]
    fn a_users_own_group_is_not_others() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        fs::write(&file, "").unwrap();
        set(&file, 0o660);
        let is_private = std::os::unix::fs::MetadataExt::gid(&fs::metadata(&file).unwrap())
            == std::os::unix::fs::MetadataExt::uid(&fs::metadata(&file).unwrap());
        assert_eq!(require_private(&file).is_ok(), is_private);
        // Giving files away takes an administrator.
        if std::os::unix::fs::chown(&file, None, Some(4242)).is_ok() {
            let said = require_private(&file).unwrap_err().to_string();
            assert!(said.contains("group 4242") && said.contains("chmod g-w"), "{said}");
        }
        set(&file, 0o600);
        if std::os::unix::fs::chown(&file, Some(4242), None).is_ok() {
            let said = require_private(&file).unwrap_err().to_string();
            assert!(said.contains("id 4242") && said.contains("chown"), "{said}");
            require_unwritable(&file).expect("whoever names a file trusts its owner");
            let (ours, link) = (folder.path().join("ours"), folder.path().join("link"));
            fs::write(&ours, "").unwrap();
            std::os::unix::fs::symlink(&ours, &link).unwrap();
            require_private(&link).expect("a link of our own");
            std::os::unix::fs::lchown(&link, Some(4242), None).unwrap();
            require_private(&link).expect_err("another's link leads where they like");
        }
    }
}
