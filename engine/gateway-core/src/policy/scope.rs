//! What routes are for.

/// What a route is for. Each route of the edge's table has exactly one.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Scope {
    /// Probes that hold no data; everybody may.
    Public,
    /// Using models.
    Inference,
    /// Reading figures and configuration.
    Operations,
    /// Changing the server.
    Admin,
}

/// A set of scopes. The default is empty. One scope never implies another.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Scopes(u8);

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 4] = [Self::Public, Self::Inference, Self::Operations, Self::Admin];

    /// The stable name.
    pub fn code(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Inference => "inference",
            Self::Operations => "operations",
            Self::Admin => "admin",
        }
    }

    /// Reads a name that [`code`](Self::code) gives; `None` for any other.
    pub fn parse(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.code() == code)
    }
}

impl Scopes {
    /// Whether the set has the scope.
    pub fn contains(self, scope: Scope) -> bool {
        self.0 & (1 << scope as u8) != 0
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |set, scope| set | 1 << scope as u8))
    }
}
