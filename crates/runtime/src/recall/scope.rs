//! Whose memory it is.

use ruvllm_engine::AdapterId;
use ruvllm_memory::Trajectory;

/// Within a tenant. What is corrected belongs to one of these: to the user that the request names, or else to its
/// session, or else to the tenant. So nothing that was said to one end user is told to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Scope {
    User(String),
    Session(String),
    Tenant,
}

/// A memory is of one model, with one adapter or none: its tokens and states mean nothing to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ScopeKey {
    pub model: [u8; 32],
    pub adapter: Option<AdapterId>,
    pub tenant: String,
    pub scope: Scope,
}

/// Which memory a request may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecallFor<'a> {
    pub adapter: Option<AdapterId>,
    pub tenant: &'a str,
    pub user: Option<&'a str>,
    pub session: Option<&'a str>,
}

impl Scope {
    /// Returns the scopes that a request may draw on, the nearest first.
    pub fn of_request(user: Option<&str>, session: Option<&str>) -> impl Iterator<Item = Self> {
        let session = session.map(|name| Self::Session(name.to_owned()));
        let user = user.map(|name| Self::User(name.to_owned()));
        session.into_iter().chain(user).chain([Self::Tenant])
    }

    /// Returns the scope of what is corrected of a request.
    pub fn of_trajectory(trajectory: &Trajectory) -> Self {
        match (&trajectory.user, &trajectory.session) {
            (Some(user), _) => Self::User(user.clone()),
            (None, Some(session)) => Self::Session(session.clone()),
            (None, None) => Self::Tenant,
        }
    }

    pub fn user(&self) -> Option<&str> {
        match self {
            Self::User(name) => Some(name),
            Self::Session(_) | Self::Tenant => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_user_is_nobody_elses() {
        let of = |user: Option<&str>, session: Option<&str>| {
            let (user, session) = (user.map(str::to_owned), session.map(str::to_owned));
            Scope::of_trajectory(&Trajectory { user, session, ..Trajectory::default() })
        };
        let may_use = |scope: &Scope, user, session| Scope::of_request(user, session).any(|own| own == *scope);
        let ada = of(Some("ada"), Some("s"));
        assert!(may_use(&ada, Some("ada"), None) && may_use(&ada, Some("ada"), Some("t")));
        assert!(!may_use(&ada, Some("eve"), Some("s")) && !may_use(&ada, None, Some("s")));
        let session = of(None, Some("s"));
        assert!(may_use(&session, None, Some("s")) && !may_use(&session, None, None));
        let tenant = of(None, None);
        assert!(may_use(&tenant, Some("eve"), Some("s")) && may_use(&tenant, None, None));
        let nearest = Scope::of_request(Some("ada"), Some("s")).next();
        assert_eq!(nearest, Some(Scope::Session("s".to_owned())));
    }
}
