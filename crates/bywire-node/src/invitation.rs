//! An invitation as the line of text that `bywire invite` prints and `bywire join` takes.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bywire_wire::handshake::PublicKey;
use zeroize::Zeroizing;

use crate::fabric::{self, ADDRESSES_MAX, ServiceAddress};
use crate::key;

/// An invitation of a fabric's keeper for one node.
#[derive(Clone, PartialEq, Eq)]
pub struct Invitation {
    /// The addresses of the keeper's service.
    pub addresses: Vec<ServiceAddress>,
    /// The key of the keeper.
    pub keeper: PublicKey,
    /// The pre-shared key of the handshake.
    pub secret: Zeroizing<[u8; 32]>,
    /// The name of the node that is to join.
    pub node: String,
    /// The name of the fabric.
    pub fabric: String,
}

/// The text is no invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not an invitation: give the whole line that `bywire invite` printed, with its quotes")]
pub struct NoInvitation;

impl fmt::Display for Invitation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(ServiceAddress::to_string).collect();
        let (keeper, secret) = (key::to_text(&self.keeper), STANDARD.encode(*self.secret));
        write!(formatter, "{} {keeper} {secret} {} {}", addresses.join(","), self.node, self.fabric)
    }
}

impl fmt::Debug for Invitation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret is not printed.
        write!(formatter, "Invitation({} to {})", self.node, self.fabric)
    }
}

impl FromStr for Invitation {
    type Err = NoInvitation;

    fn from_str(text: &str) -> Result<Self, NoInvitation> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [addresses, keeper, secret, node, fabric] = words[..] else { return Err(NoInvitation) };
        let addresses: Vec<ServiceAddress> =
            addresses.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| NoInvitation)?;
        let keeper = key::from_text(keeper).ok_or(NoInvitation)?;
        // A key and a secret have the same form.
        let PublicKey(secret) = key::from_text(secret).ok_or(NoInvitation)?;
        if addresses.len() > ADDRESSES_MAX || !fabric::is_name(node) || !fabric::is_name(fabric) {
            return Err(NoInvitation);
        }
        let (node, fabric) = (node.to_owned(), fabric.to_owned());
        Ok(Self { addresses, keeper, secret: Zeroizing::new(secret), node, fabric })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_is_read_as_it_was_written() {
        let addresses = ["10.0.0.1:7248", "[2001:db8::1]:7000", "web1.example:7248"];
        let invitation = Invitation {
            addresses: addresses.map(|text| text.parse().expect(text)).to_vec(),
            keeper: PublicKey([7; 32]),
            secret: Zeroizing::new([9; 32]),
            node: "web2".to_owned(),
            fabric: "lab".to_owned(),
        };
        let line = invitation.to_string();
        assert_eq!(line.parse(), Ok(invitation.clone()));
        assert_eq!(format!("  {}\n", line.replace(' ', "\n")).parse(), Ok(invitation.clone()));
        assert!(!format!("{invitation:?}").contains("CQkJ"), "the secret is not shown");
        for wrong in [
            line.replace(" lab", ""),
            format!("{line} more"),
            line.replace("web2", "a/b"),
            line.replace("CQkJ", "CQk"),
            line.replace("10.0.0.1:7248", "10.0.0.1:0"),
            line.replace("10.0.0.1:7248", &addresses.join(",").repeat(4)),
            String::new(),
        ] {
            assert_eq!(wrong.parse::<Invitation>(), Err(NoInvitation), "{wrong}");
        }
    }
}
