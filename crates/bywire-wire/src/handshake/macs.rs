//! Message authentication codes and derived keys: HMAC-SHA256 and HKDF-SHA256, truncated to the needed length.

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use aws_lc_rs::hmac::{self, HMAC_SHA256, Key};

use crate::keys;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Bytes of a check, and of a cookie.
pub const MAC_BYTES: usize = 16;

/// Computes and compares checks.
#[derive(Clone, Debug)]
pub struct MacKey(Key);

impl MacKey {
    /// The key for packets to the owner of a public key.
    pub fn of_receiver(receiver: &[u8; KEY_BYTES]) -> Self {
        Self::new(&[&b"bywire mac1 "[..], receiver].concat())
    }

    /// The key for a sender that has a cookie.
    pub fn of_cookie(cookie: &[u8; MAC_BYTES]) -> Self {
        Self::new(cookie)
    }

    /// A key of any bytes.
    pub fn new(key: &[u8]) -> Self {
        Self(Key::new(HMAC_SHA256, key))
    }

    /// The check of some bytes.
    pub fn mac(&self, bytes: &[u8]) -> [u8; MAC_BYTES] {
        let tag = hmac::sign(&self.0, bytes);
        *tag.as_ref().first_chunk().expect("a hash is longer than a check")
    }

    /// Is this their check? The comparison takes constant time.
    pub fn is_mac(&self, bytes: &[u8], mac: &[u8]) -> bool {
        verify_slices_are_equal(&self.mac(bytes), mac).is_ok()
    }
}

/// A key derived from a secret.
pub fn derive(salt: &[u8], secret: &[u8], label: &[u8]) -> [u8; KEY_BYTES] {
    *keys::derive(&Salt::new(HKDF_SHA256, salt).extract(secret), label)
}

/// The key that encrypts a cookie. Everyone with the sender's public key can derive it. No key is used twice, because
/// `salt` is random.
fn cookie_key(giver: &[u8; KEY_BYTES], salt: &[u8; KEY_BYTES]) -> LessSafeKey {
    cipher(&derive(salt, giver, b"bywire cookie"))
}

fn cipher(key: &[u8; KEY_BYTES]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, key).expect("the cipher takes 32 bytes"))
}

/// An encrypted text. The key must be used for no other one.
pub fn seal_text(key: &[u8; KEY_BYTES], text: &str) -> Vec<u8> {
    let mut sealed = text.as_bytes().to_vec();
    let nonce = Nonce::assume_unique_for_key([0; 12]);
    let done = cipher(key).seal_in_place_append_tag(nonce, Aad::empty(), &mut sealed);
    done.expect("a text is short enough for any cipher");
    sealed
}

/// Decrypts a text. `None`: it is forged.
pub fn open_text(key: &[u8; KEY_BYTES], mut sealed: Vec<u8>) -> Option<String> {
    let nonce = Nonce::assume_unique_for_key([0; 12]);
    let text = cipher(key).open_in_place(nonce, Aad::empty(), &mut sealed).ok()?;
    String::from_utf8(text.to_vec()).ok()
}

/// An encrypted cookie: the cookie and a tag, both bound to `bound`.
pub fn seal_cookie(
    giver: &[u8; KEY_BYTES],
    salt: &[u8; KEY_BYTES],
    bound: &[u8],
    cookie: [u8; MAC_BYTES],
) -> [u8; 32] {
    let mut sealed = [0; 32];
    let (front, back) = sealed.split_at_mut(MAC_BYTES);
    front.copy_from_slice(&cookie);
    let nonce = Nonce::assume_unique_for_key([0; 12]);
    let tag = cookie_key(giver, salt).seal_in_place_separate_tag(nonce, Aad::from(bound), front);
    back.copy_from_slice(tag.expect("a cookie is short enough for any cipher").as_ref());
    sealed
}

/// Decrypts a cookie. `None`: it is forged.
pub fn open_cookie(
    giver: &[u8; KEY_BYTES],
    salt: &[u8; KEY_BYTES],
    bound: &[u8],
    mut sealed: [u8; 32],
) -> Option<[u8; MAC_BYTES]> {
    let nonce = Nonce::assume_unique_for_key([0; 12]);
    let opened = cookie_key(giver, salt).open_in_place(nonce, Aad::from(bound), &mut sealed);
    opened.ok()?.as_ref().try_into().ok()
}
