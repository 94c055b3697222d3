//! Other programs that carry Ethernet or IP between two namespaces, over a veth pair of its own each.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bywire_measure::interrupt::Leader;
use bywire_measure::namespaces::{NamespaceLink, Namespaces, PREFIX_LENGTH, Side};

use crate::ethernet::Join;
use crate::process::{self, Place, find};

/// The interface that programs see.
const INTERFACE: &str = "by0";
/// The MTU below the tunnels of one machine: longer than their frames, so that none is fragmented twice.
const LONG_WIRE_MTU_BYTES: u32 = 9200;
/// The MTU of a wire between machines.
pub const WIRE_MTU_BYTES: u32 = 1500;
const UNDERLAY: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 168, 77, 1), Ipv4Addr::new(192, 168, 77, 2)];
/// The UDP port of those that are told one.
const PORT: u16 = 4242;
/// A daemon that has not made its interface within this time is killed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A rival, by its name in the tables.
pub struct Rival {
    pub name: &'static str,
    /// The MTU of its interface.
    pub mtu_bytes: u32,
    /// The MTU of the wire below it.
    wire_mtu_bytes: u32,
    /// Whether its packets are encrypted.
    pub is_encrypted: bool,
    /// The programs that it needs, with their Debian packages.
    programs: &'static [Program],
    start: Start,
}

type Program = (&'static str, &'static str);

/// Starts the daemons of both sides.
type Start = fn(&Pair) -> Result<Vec<Leader>>;

/// A rival at both ends of a wire, and its directory.
struct Pair<'a> {
    rival: &'a Rival,
    sides: [Side<'a>; 2],
    directory: &'a Path,
}

/// Those within one machine, without encryption. Each has the longest MTU that it takes, up to 9000.
pub const RIVALS: [Rival; 4] = [
    Rival { mtu_bytes: 9000, wire_mtu_bytes: LONG_WIRE_MTU_BYTES, ..VXLAN },
    Rival { mtu_bytes: 9000, wire_mtu_bytes: LONG_WIRE_MTU_BYTES, ..OPENVPN },
    Rival { mtu_bytes: 1500, wire_mtu_bytes: LONG_WIRE_MTU_BYTES, ..TINC },
    Rival { wire_mtu_bytes: LONG_WIRE_MTU_BYTES, ..VDE },
];

/// Those over a wire of [`WIRE_MTU_BYTES`]. Each has its own default MTU, or the longest whose packets the wire takes whole.
pub const RIVALS_BETWEEN_MACHINES: [Rival; 9] = [
    VXLAN,
    rival("kernel WireGuard", 1420, &[WG], kernel_wireguard).encrypted(),
    OPENVPN,
    TINC,
    VDE,
    rival("OpenVPN tap encrypted", 1430, &[OPENVPN_PROGRAM, ("openssl", "openssl")], openvpn).encrypted(),
    Rival { name: "tinc encrypted", ..TINC }.encrypted(),
    rival("nebula", 1300, &[("nebula", "nebula"), ("nebula-cert", "nebula")], nebula).encrypted(),
    rival("wireguard-go", 1420, &[("wireguard-go", "wireguard-go"), WG], wireguard_go).encrypted(),
];

const WG: Program = ("wg", "wireguard-tools");
const OPENVPN_PROGRAM: Program = ("openvpn", "openvpn");
const VXLAN: Rival = rival("kernel VXLAN", 1450, &[], vxlan);
const OPENVPN: Rival = rival("OpenVPN tap", 1430, &[OPENVPN_PROGRAM], openvpn);
const TINC: Rival = rival("tinc", 1400, &[("tincd", "tinc")], tinc);
const VDE: Rival = rival("vde", 1500, &[("vde_switch", "vde2"), ("vde_plug2tap", "vde2")], vde);

/// One without encryption between machines.
const fn rival(name: &'static str, mtu_bytes: u32, programs: &'static [Program], start: Start) -> Rival {
    Rival { name, mtu_bytes, wire_mtu_bytes: WIRE_MTU_BYTES, is_encrypted: false, programs, start }
}

impl Rival {
    const fn encrypted(self) -> Self {
        Self { is_encrypted: true, ..self }
    }

    /// Joins two namespaces by it.
    pub fn join(&'static self) -> Join {
        Rc::new(|| Ok(Place(Some(Arc::new(self.open()?)))))
    }

    fn open(&self) -> Result<Namespaces> {
        for (program, package) in self.programs {
            find(program, package)?;
        }
        Namespaces::joined(2, |sides| {
            let sides = [sides[0], sides[1]];
            let directory = tempfile::tempdir()?;
            let pair = Pair { rival: self, sides, directory: directory.path() };
            pair.lay_wire().context("cannot set up a veth pair")?;
            let daemons = (self.start)(&pair)?;
            for side in sides {
                // The interface that a daemon makes, and its address.
                let batch = format!(
                    "link set {INTERFACE} mtu {} up\naddress replace {}/{PREFIX_LENGTH} dev {INTERFACE}\n",
                    self.mtu_bytes,
                    side.namespace.address()
                );
                let made = await_success(|| side.namespace.configure(&batch));
                made.with_context(|| format!("{} makes no interface", self.name))?;
            }
            let processes = daemons.iter().map(|daemon| daemon.child.id()).collect();
            Ok(NamespaceLink { name: self.name, processes, kept: Box::new((daemons, directory)) })
        })
    }
}

impl Pair<'_> {
    fn lay_wire(&self) -> Result<()> {
        let (mtu, [source, target]) = (self.rival.wire_mtu_bytes, self.sides);
        source.namespace.configure(&format!(
            "link add under0 mtu {mtu} type veth peer name under0 mtu {mtu} netns {}\n",
            target.process
        ))?;
        self.sides.iter().zip(UNDERLAY).try_for_each(|(side, address)| {
            let batch = format!("address add {address}/24 dev under0\nlink set under0 up\n");
            side.namespace.configure(&batch)
        })
    }

    /// Starts a daemon at one of the sides, which works in the directory.
    fn daemon(&self, own: usize, line: &str) -> Result<Leader> {
        let mut command = process::command(Some(self.sides[own].namespace), None, line)?;
        // An open standard input: some programs exit when it is closed.
        process::start(command.stdin(Stdio::piped()).current_dir(self.directory))
    }

    /// Runs a line by a shell in the directory, in the namespace of a side or outside. Returns its output.
    fn printed(&self, own: Option<usize>, line: &str) -> Result<String> {
        let mut command = Command::new("sh");
        own.map_or(Ok(()), |own| self.sides[own].namespace.enter(&mut command))?;
        let done = command.args(["-c", line]).stdin(Stdio::null()).current_dir(self.directory).output()?;
        let said = String::from_utf8_lossy(&done.stderr);
        let (program, last) = (line.split(' ').next(), said.lines().last().unwrap_or("it said nothing"));
        ensure!(done.status.success(), "{}: {last}", program.unwrap_or_default());
        Ok(String::from_utf8(done.stdout)?.trim().to_owned())
    }

    fn write(&self, name: &str, text: String) -> Result<()> {
        Ok(fs::write(self.directory.join(name), text)?)
    }
}

/// The names of both sides in files and settings.
const NAMES: [&str; 2] = ["source", "target"];

/// The addresses of a side and of the other one below the tunnel.
fn underlay(own: usize) -> [Ipv4Addr; 2] {
    [UNDERLAY[own], UNDERLAY[1 - own]]
}

/// Tries until it succeeds, or until a daemon would have been ready.
fn await_success(attempt: impl Fn() -> Result<()>) -> Result<()> {
    let started = Instant::now();
    while let Err(error) = attempt() {
        if started.elapsed() > TIMEOUT {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn vxlan(pair: &Pair) -> Result<Vec<Leader>> {
    for (own, side) in pair.sides.iter().enumerate() {
        let [here, there] = underlay(own);
        let made = side.namespace.configure(&format!(
            "link add {INTERFACE} type vxlan id 77 local {here} remote {there} dstport 4789 dev under0\n"
        ));
        made.context("this kernel has no VXLAN")?;
    }
    Ok(Vec::new())
}

fn openvpn(pair: &Pair) -> Result<Vec<Leader>> {
    let fingerprints = match pair.rival.is_encrypted {
        true => [certificate(pair, NAMES[0])?, certificate(pair, NAMES[1])?],
        false => Default::default(),
    };
    let start = |own: usize| {
        let ([here, there], name, fingerprint) = (underlay(own), NAMES[own], &fingerprints[1 - own]);
        let ends = format!("--dev-type tap --dev {INTERFACE} --local {here} --remote {there}");
        let role = if own == 0 { "--tls-client" } else { "--tls-server --dh none" };
        let security = match pair.rival.is_encrypted {
            true => format!(
                "{role} --key {name}.key --cert {name}.crt --peer-fingerprint {fingerprint} \
                 --data-ciphers AES-256-GCM"
            ),
            false => "--cipher none --auth none".to_owned(),
        };
        let mtu = pair.rival.mtu_bytes;
        pair.daemon(own, &format!("openvpn {ends} --tun-mtu {mtu} --mssfix 0 {security}"))
    };
    // The one that answers is there first.
    let target = start(1)?;
    Ok(vec![start(0)?, target])
}

/// Makes a key and a certificate that it signs itself. Returns the certificate's fingerprint.
fn certificate(pair: &Pair, name: &str) -> Result<String> {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=bench";
    pair.printed(None, &format!("openssl req -x509 {key} -keyout {name}.key -out {name}.crt"))?;
    let shown = pair.printed(None, &format!("openssl x509 -noout -fingerprint -sha256 -in {name}.crt"))?;
    let (_, fingerprint) = shown.split_once('=').context("openssl prints no fingerprint")?;
    Ok(fingerprint.to_owned())
}

fn vde(pair: &Pair) -> Result<Vec<Leader>> {
    let switch = pair.directory.join("switch");
    let mut all = vec![pair.daemon(0, &format!("vde_switch -s '{}'", switch.display()))?];
    await_success(|| {
        ensure!(switch.join("ctl").exists(), "vde_switch does not start");
        Ok(())
    })?;
    for own in 0..2 {
        all.push(pair.daemon(own, &format!("vde_plug2tap -s '{}' {INTERFACE}", switch.display()))?);
    }
    Ok(all)
}

/// Two nodes that know each other's keys.
fn tinc(pair: &Pair) -> Result<Vec<Leader>> {
    // Its own cipher and digest otherwise.
    let plain = if pair.rival.is_encrypted { "" } else { "Cipher = none\nDigest = none\n" };
    let home = |own: usize| pair.directory.join(NAMES[own]).display().to_string();
    for (own, name) in NAMES.into_iter().enumerate() {
        fs::create_dir_all(format!("{}/hosts", home(own)))?;
        let other = if own == 0 { "ConnectTo = target\n" } else { "" };
        let configuration =
            format!("Name = {name}\nMode = switch\nDeviceType = tap\nInterface = {INTERFACE}\n{other}");
        pair.write(&format!("{name}/tinc.conf"), configuration)?;
        let host = format!("Address = {}\n{plain}Compression = 0\n", UNDERLAY[own]);
        pair.write(&format!("{name}/hosts/{name}"), host)?;
        pair.printed(None, &format!("tincd -c '{}' -K 2048", home(own)))?;
    }
    for (own, other) in [(0, 1), (1, 0)] {
        let file = |at: usize| format!("{}/hosts/{}", home(at), NAMES[other]);
        fs::copy(file(other), file(own))?;
    }
    let start = |own: usize| pair.daemon(own, &format!("tincd -c '{0}' -D '--pidfile={0}/pid'", home(own)));
    // The one that connects finds the other there.
    let target = start(1)?;
    std::thread::sleep(Duration::from_millis(300));
    Ok(vec![start(0)?, target])
}

/// Two hosts of one authority, which know where the other one is. All else is as it comes.
fn nebula(pair: &Pair) -> Result<Vec<Leader>> {
    pair.printed(None, "nebula-cert ca -name bench -out-crt ca.crt -out-key ca.key")?;
    let mut daemons = Vec::new();
    for (own, name) in NAMES.into_iter().enumerate() {
        let [address, other] = [own, 1 - own].map(|side| pair.sides[side].namespace.address());
        let files = format!("-ca-crt ca.crt -ca-key ca.key -out-crt {name}.crt -out-key {name}.key");
        pair.printed(None, &format!("nebula-cert sign {files} -name {name} -ip {address}/{PREFIX_LENGTH}"))?;
        let (there, mtu) = (UNDERLAY[1 - own], pair.rival.mtu_bytes);
        let any = "[{port: any, proto: any, host: any}]";
        let settings = format!(
            "pki: {{ca: ca.crt, cert: {name}.crt, key: {name}.key}}\n\
             static_host_map: {{\"{other}\": [\"{there}:{PORT}\"]}}\n\
             lighthouse: {{am_lighthouse: false}}\n\
             listen: {{host: 0.0.0.0, port: {PORT}}}\n\
             tun: {{dev: {INTERFACE}, mtu: {mtu}}}\n\
             firewall: {{outbound: {any}, inbound: {any}}}\n"
        );
        pair.write(&format!("{name}.yml"), settings)?;
        daemons.push(pair.daemon(own, &format!("nebula -config {name}.yml"))?);
    }
    Ok(daemons)
}

fn wireguard_go(pair: &Pair) -> Result<Vec<Leader>> {
    // Both have their sockets in one directory, under the names of their interfaces.
    let names = ["s", "t"].map(|end| format!("wg{}{end}", std::process::id()));
    let start = |own: usize| pair.daemon(own, &format!("wireguard-go -f {}", names[own]));
    let daemons = vec![start(0)?, start(1)?];
    wireguard(pair, |own| names[own].as_str())?;
    for (side, name) in pair.sides.iter().zip(&names) {
        side.namespace.configure(&format!("link set {name} name {INTERFACE}\n"))?;
    }
    Ok(daemons)
}

fn kernel_wireguard(pair: &Pair) -> Result<Vec<Leader>> {
    for side in pair.sides {
        let made = side.namespace.configure(&format!("link add {INTERFACE} type wireguard\n"));
        made.context("this kernel has no WireGuard")?;
    }
    wireguard(pair, |_| INTERFACE)?;
    Ok(Vec::new())
}

/// Makes keys, and introduces the interfaces of both sides to each other.
fn wireguard<'a>(pair: &Pair, interface: impl Fn(usize) -> &'a str) -> Result<()> {
    let make = |name: &str| pair.printed(None, &format!("wg genkey | tee {name}.key | wg pubkey"));
    let public_keys = [make(NAMES[0])?, make(NAMES[1])?];
    (0..2).try_for_each(|own| {
        let (name, key, interface) = (NAMES[own], &public_keys[1 - own], interface(own));
        let (there, other) = (UNDERLAY[1 - own], pair.sides[1 - own].namespace.address());
        let peer = format!("peer {key} allowed-ips {other}/32 endpoint {there}:{PORT}");
        let line = format!("wg set {interface} listen-port {PORT} private-key {name}.key {peer}");
        await_success(|| pair.printed(Some(own), &line).map(drop)).context("WireGuard is not ready")
    })
}
