//! libfabric loads the provider from where docs/mpi.md puts it, and only those get it who name it. Needs libfabric-bin.

use crate::loaded::{Loaded, run};

#[test]
fn the_provider_offers_itself_to_those_who_name_it() {
    let Some(loaded) = Loaded::new(&["fi_info", "cc"], "rdma/fabric.h") else { return };
    let named = run(loaded.command("fi_info").args(["-p", "bywire", "-v"]));
    for wanted in ["prov_name: bywire", "FI_EP_RDM", "FI_TAGGED", "FI_PROGRESS_MANUAL", "FI_ORDER_SAS"] {
        assert!(named.contains(wanted), "{wanted}: {named}");
    }
    let by_variable = run(loaded.command("fi_info").env("FI_PROVIDER", "bywire"));
    assert!(by_variable.contains("provider: bywire"), "{by_variable}");
}

#[test]
fn a_program_that_names_no_provider_gets_another_one() {
    let Some(loaded) = Loaded::new(&["fi_info", "cc"], "rdma/fabric.h") else { return };
    let all = run(&mut loaded.command("fi_info"));
    assert!(all.contains("provider:") && !all.contains("bywire"), "{all}");
    // It was loaded all the same.
    let loadable = run(loaded.command("fi_info").arg("-l"));
    assert!(loadable.contains("bywire:"), "{loadable}");
    for excluded in ["^bywire", "tcp"] {
        let mut command = loaded.command("fi_info");
        let found = run(command.env("FI_PROVIDER", excluded));
        assert!(!found.contains("bywire"), "{excluded}: {found}");
    }
}

#[test]
fn the_library_stays_loaded_and_needs_no_libfabric() {
    let Some(loaded) = Loaded::new(&["readelf", "cc"], "rdma/fabric.h") else { return };
    let library = loaded.path("libbywire-fi.so");
    let dynamic = run(loaded.command("readelf").arg("-dW").arg(&library));
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    // It would bind to newer functions than an older libfabric has.
    assert!(!dynamic.contains("libfabric"), "{dynamic}");
}
