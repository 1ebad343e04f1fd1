use std::{fmt, str::FromStr, sync::Arc};

/// Longest trust domain and longest name in an [`Identity`], in bytes: the limit of DNS names.
pub const NAME_LIMIT: usize = 253;

const SCHEME: &str = "spiffe://";

/// The role of a certificate's holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A host. Its agent reaches only its own attachments and VFs.
    Host,
    /// A DPU: the only role of servers.
    Dpu,
    /// An operator with all permissions.
    Operator,
    /// An operator with read permission.
    Viewer,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 4] = [Role::Host, Role::Dpu, Role::Operator, Role::Viewer];

    /// The role's name in identities, such as `host`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Host => "host",
            Role::Dpu => "dpu",
            Role::Operator => "operator",
            Role::Viewer => "viewer",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.as_str())
    }
}

impl FromStr for Role {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let found = Self::ALL.into_iter().find(|role| role.as_str() == text);
        found.ok_or_else(|| IdentityError::Role(shorten(text)))
    }
}

/// The identity of a certificate's holder, displayed as `spiffe://<trust domain>/<role>/<name>`. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    trust_domain: Arc<str>,
    role: Role,
    name: Arc<str>,
}

impl Identity {
    /// Creates the identity of `name` in `trust_domain`.
    ///
    /// # Errors
    /// [`IdentityError`] if trust domain or name are empty, longer than [`NAME_LIMIT`], or contain other characters
    /// than allowed.
    pub fn new(trust_domain: &str, role: Role, name: &str) -> Result<Self, IdentityError> {
        if !is_trust_domain(trust_domain) {
            return Err(IdentityError::TrustDomain(shorten(trust_domain)));
        }
        if !is_name(name) {
            return Err(IdentityError::Name(shorten(name)));
        }
        Ok(Self { trust_domain: trust_domain.into(), role, name: name.into() })
    }

    /// The trust domain, in which names are unique per role.
    #[must_use]
    pub fn trust_domain(&self) -> &str {
        &self.trust_domain
    }

    /// The holder's role.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The holder's name, unique in its trust domain and role.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{SCHEME}{}/{}/{}", self.trust_domain, self.role, self.name)
    }
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let malformed = || IdentityError::Form(shorten(text));
        let path = text.strip_prefix(SCHEME).ok_or_else(malformed)?;
        let (trust_domain, path) = path.split_once('/').ok_or_else(malformed)?;
        let (role, name) = path.split_once('/').ok_or_else(malformed)?;
        Self::new(trust_domain, role.parse()?, name)
    }
}

/// Why a text is no identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
#[non_exhaustive]
pub enum IdentityError {
    #[error("{0:?} is not of the form spiffe://<trust domain>/<role>/<name>")]
    Form(String),
    #[error("{0:?} is no role: the roles are host, dpu, operator and viewer")]
    Role(String),
    #[error(
        "{0:?} is no trust domain: 1 to {NAME_LIMIT} of a-z, 0-9, `.`, `-` and `_`, beginning and \
         ending with a letter or digit"
    )]
    TrustDomain(String),
    #[error(
        "{0:?} is no name: 1 to {NAME_LIMIT} of letters, digits, `.`, `-` and `_`, beginning and \
         ending with a letter or digit"
    )]
    Name(String),
}

pub(crate) fn is_trust_domain(text: &str) -> bool {
    is_name(text) && !text.contains(|c: char| c.is_ascii_uppercase())
}

fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_".contains(byte);
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= NAME_LIMIT
        && bytes.iter().all(inner)
        && edge(bytes.first())
        && edge(bytes.last())
}

/// Bounds a text for messages: the text may come from an unknown peer's certificate.
fn shorten(text: &str) -> String {
    const SHOWN: usize = 80;
    text.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_read_back_as_shown() {
        for role in Role::ALL {
            let identity = Identity::new("dpu-offload.local", role, "node-1.rack2").unwrap();
            assert_eq!(identity.to_string().parse::<Identity>().unwrap(), identity);
        }
        let text = "spiffe://dpu-offload.local/host/node-1";
        let identity: Identity = text.parse().unwrap();
        assert_eq!((identity.role(), identity.name()), (Role::Host, "node-1"));
        assert_eq!(identity.to_string(), text);
    }

    #[test]
    fn other_texts_are_refused() {
        let long = format!("spiffe://td/host/{}", "x".repeat(NAME_LIMIT + 1));
        let refused = [
            "",
            "spiffe://",
            "spiffe://td",
            "spiffe://td/host",
            "spiffe://td/host/",
            "spiffe://td/host/a/b",
            "spiffe://td/host/..",
            "spiffe://td/host/a b",
            "spiffe://td/host/a%2fb",
            "spiffe://td/host/ä",
            "spiffe://td/host/a\0",
            "spiffe://TD/host/a",
            "spiffe:///host/a",
            "spiffe://td/Host/a",
            "spiffe://td/root/a",
            "https://td/host/a",
            "SPIFFE://td/host/a",
            &long,
        ];
        for text in refused {
            assert!(text.parse::<Identity>().is_err(), "{text}");
        }
    }

    #[test]
    fn errors_name_what_is_wrong_and_stay_short() {
        let error = "spiffe://td/hots/a".parse::<Identity>().unwrap_err();
        assert!(error.to_string().starts_with("\"hots\" is no role: "), "{error}");
        assert!(error.to_string().ends_with(" operator and viewer"), "{error}");
        let error = "x".repeat(10_000).parse::<Identity>().unwrap_err();
        assert!(error.to_string().len() < 200);
    }
}
