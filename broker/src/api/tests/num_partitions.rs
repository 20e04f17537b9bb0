//! `num.partitions`: how many partitions a topic gets that is created without a number (KIP-464).

use env::Simulation;
use kafka_wire::messages::create_topics_request::CreatableTopic;
use kafka_wire::messages::describe_configs_request::DescribeConfigsResource;
use kafka_wire::messages::metadata_request::MetadataRequestTopic;
use kafka_wire::messages::{CreateTopicsRequest, DescribeConfigsRequest, MetadataRequest};

use super::*;

/// Partitions of a topic created by a request and of one created automatically, as the brokers tell, and what
/// DescribeConfigs of broker `id` says, with its source.
async fn defaults(client: &mut Client, env: &Env, id: i32) -> ([usize; 2], (String, i8)) {
    let (asked, automatic) = (format!("asked-{id}"), format!("automatic-{id}"));
    let topic = CreatableTopic::default()
        .with_name(topic_name(&asked))
        .with_num_partitions(-1)
        .with_replication_factor(-1);
    let request = CreateTopicsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(30_000);
    let created = &client.call(&request, 7).await.topics[0];
    assert_eq!(created.error_code, 0, "{created:?}");
    let made = usize::try_from(created.num_partitions).unwrap();

    let topic = MetadataRequestTopic::default().with_name(Some(topic_name(&automatic)));
    let request = MetadataRequest::default()
        .with_topics(Some(vec![topic]))
        .with_allow_auto_topic_creation(true);
    let mut grown = 0;
    for _ in 0..50 {
        let answer = client.call(&request, 12).await;
        if answer.topics[0].error_code == 0 {
            grown = answer.topics[0].partitions.len();
            break;
        }
        env.sleep(SECOND / 10).await;
    }

    let resource = DescribeConfigsResource::default()
        .with_resource_type(4)
        .with_resource_name(StrBytes::from_string(id.to_string()))
        .with_configuration_keys(Some(vec![StrBytes::from_static_str("num.partitions")]));
    let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
    let answer = client.call(&request, 4).await;
    let config = &answer.results[0].configs[0];
    let value = config.value.clone().unwrap_or_default().to_string();
    ([made, grown], (value, config.config_source))
}

#[tokio::test(start_paused = true)]
async fn without_a_setting_it_is_one() {
    let c = cluster().await;
    let mut client = c.client().await;
    let told = defaults(&mut client, &c.env, 1).await;
    assert_eq!(told, ([1, 1], ("1".to_owned(), 5)));
}

/// A broker with another number of its own, as in the middle of a roll, does not make a difference.
#[tokio::test(start_paused = true)]
async fn the_controllers_number_counts_whichever_broker_is_asked() {
    let simulation = Simulation::new(7);
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "a secret that all nodes share").unwrap();
    let store: SharedStore = Arc::new(MemoryStore::new(simulation.node("bucket")));
    let env = simulation.node("test");
    let mut nodes = Vec::new();
    for (host, id, num_partitions) in [("one", 1, 3), ("two", 2, 7)] {
        let mut config = Config::dev(&dir.path().join(host), 9092, Some("memory://"));
        config.node.id = Some(id);
        config.internal.advertised_host = Some(host.to_owned());
        config.internal.secret_file = Some(secret.clone());
        config.coordinator.num_partitions = num_partitions;
        config.alone = false;
        let node = Node::start(simulation.node(host), config, store.clone())
            .await
            .unwrap();
        // The first is the controller.
        env.timeout(60 * SECOND, node.ready()).await.unwrap();
        nodes.push(node);
    }
    for (host, id) in [("one", 1), ("two", 2)] {
        let mut client = Client {
            stream: env.connect(&format!("{host}:9092")).await.unwrap(),
            next: 0,
        };
        let told = defaults(&mut client, &env, id).await;
        assert_eq!(told, ([3, 3], ("3".to_owned(), 4)), "asked at {host}");
    }
}
