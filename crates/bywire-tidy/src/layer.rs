//! The tree is the architecture: a crate depends only on crates of lower layers.

use crate::breach::Breach;
use crate::tree::Tree;

/// From the bottom up. Crates of one layer do not depend on each other.
const LAYERS: [&[&str]; 10] = [
    &["bywire-command", "bywire-sys"],
    &["bywire-metrics", "bywire-ring"],
    &["bywire-match", "bywire-stream", "bywire-wire"],
    &["bywire", "bywire-pairing"],
    &["bywire-capi", "bywire-eth", "bywire-node", "bywire-ofi", "bywire-python", "bywire-sockets"],
    &["bywire-engine"],
    &["bywire-history", "bywire-results"],
    &["bywire-analysis"],
    &["bywire-measure", "bywire-report"],
    &["bywire-cli", "bywire-figures", "bywire-examples"],
];

/// Tools of the tree. Only tests depend on them. The simulator depends on what it simulates.
const ASIDE: &[&str] = &["bywire-fuzz", "bywire-sim", "bywire-testing", "bywire-tidy"];

/// One breach per dependency that does not point to a lower layer, and per crate without a layer.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (name, member) in tree.crates.iter().filter(|(name, _)| !ASIDE.contains(&name.as_str())) {
        let path = format!("{}/Cargo.toml", member.directory);
        let mut report = |reason| breaches.push(Breach { path: path.clone(), line: 0, reason });
        let Some(layer) = layer_of(name) else {
            report(format!("{name} has no layer: give it one in crates/bywire-tidy/src/layer.rs"));
            continue;
        };
        let firm = member.dependencies.iter().filter(|dependency| dependency.ours && !dependency.development);
        for dependency in firm {
            if layer_of(&dependency.name).is_none_or(|below| below >= layer) {
                report(format!("{name} must not depend on {}, which is not below it", dependency.name));
            }
        }
    }
    breaches
}

fn layer_of(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Dependency;

    fn on(name: &str) -> Dependency {
        Dependency { name: name.to_owned(), ours: true, development: false }
    }

    #[test]
    fn only_dependencies_on_lower_layers_hold() {
        let tree = Tree::default()
            .with_crate("bywire-ring", &[on("bywire-sys")])
            .with_crate("bywire-wire", &[Dependency { development: true, ..on("bywire-measure") }])
            .with_crate("bywire-sys", &[on("bywire")])
            .with_crate("bywire-capi", &[on("bywire-eth")])
            .with_crate("bywire-new", &[]);
        let paths: Vec<String> = check(&tree).into_iter().map(|breach| breach.path).collect();
        assert_eq!(
            paths,
            ["bywire-capi", "bywire-new", "bywire-sys"].map(|name| format!("crates/{name}/Cargo.toml"))
        );
    }
}
