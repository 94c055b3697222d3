//! A web server is measured as everything else is, in pairs; only what it is asked differs.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::Value;

use super::{Measurement, Places};
use crate::ending::Misuse;
use crate::gathering::{Gathering, Subject};
use crate::outline::{choose_cores, on_off};
use crate::pair::Place;
use crate::plan::Job;
use crate::request::{MTU_BYTES, Request};
use crate::{ethernet, web};

impl Measurement {
    /// Checks a request for a web server and opens what its pairs run in.
    pub(super) fn of_web(request: &Request, places: &mut Places) -> Result<Self> {
        let mut plan = web::Plan::of(request).map_err(Misuse::of)?;
        // Where it goes is found out before anything is started.
        if let Some(path) = &request.web.trace_out {
            plan.write_trace(path).map_err(Misuse::of)?;
        }
        let mtu_bytes = request.mtu_bytes.unwrap_or(MTU_BYTES);
        let carriage = plan.link.carriage().map(|link| {
            let coalesce = request.coalesce.unwrap_or(true);
            ethernet::carriage(link, mtu_bytes, coalesce, request.segmentation.unwrap_or(true))
        });
        let place = match carriage {
            Some(carriage) => places.ethernet(request, carriage.map_err(Misuse::of)?)?,
            None => Place::Processes,
        };
        plan.bind = place.target_address();
        plan.carriers = place.carriers().to_vec();
        let cores = choose_cores(request.cores, &place).map_err(Misuse::of)?;
        Ok(Self {
            parameters: parameters(request, &plan),
            breakdown: None,
            ethernet: false,
            beside: None,
            load: 0,
            gathering: Gathering::new(Subject::Web(plan.clone())),
            link: Some(plan.link.name().to_owned()),
            between: if matches!(place, Place::Namespaces(_)) { "namespaces" } else { "processes" }
                .to_owned(),
            job: Job::Web(plan),
            place,
            crowd: None,
            cores,
            crowds_repeated: 0,
            segments: None,
            moments: Vec::new(),
        })
    }
}

/// What was chosen, in the words of the command line; how the server was configured is part of it.
fn parameters(request: &Request, plan: &web::Plan) -> BTreeMap<String, Value> {
    let mut parameters = BTreeMap::from([
        ("server".to_owned(), plan.server.name().into()),
        ("connections".to_owned(), plan.connections.into()),
        ("sendfile".to_owned(), "on".into()),
        ("blocks".to_owned(), plan.blocks.into()),
        ("block_us".to_owned(), plan.block_us.into()),
    ]);
    let mut set = |name: &str, value: Option<Value>| {
        parameters.extend(value.map(|value| (name.to_owned(), value)));
    };
    let zipf = plan.test == web::Test::Zipf;
    set("alpha", zipf.then(|| plan.alpha.into()));
    set("rank", zipf.then(|| plan.rank.name().into()));
    set("documents", zipf.then(|| plan.documents.into()));
    set("seed", Some(plan.seed.into()));
    set("mtu", plan.link.carriage().map(|_| request.mtu_bytes.unwrap_or(MTU_BYTES).into()));
    set("coalesce", request.coalesce.map(on_off));
    set("segmentation", request.segmentation.map(on_off));
    set("verify", plan.verify.then(|| true.into()));
    parameters
}
