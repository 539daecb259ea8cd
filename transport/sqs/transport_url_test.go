package sqs_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport/sqs"
)

func TestParseURLReadsRegionAndOptions(t *testing.T) {
	for text, want := range map[string]*sqs.Transport{
		"sqs://":              {},
		"sqs://eu-central-1":  {Region: "eu-central-1"},
		"sqs://eu-central-1/": {Region: "eu-central-1"},
		"sqs://eu?profile=shop&endpoint=http://127.0.0.1:4566&queue_prefix=q-&topic_prefix=t-&missing_topic=create" +
			"&kms_key=alias/shop&group_header=Tenant&retention=168h&lease=1m&receive_limit=-1&max_message=262144" +
			"&raw_body=true&wide_policy=true&short_delays=true&event_topics=concrete": {
			Region: "eu", Profile: "shop", Endpoint: "http://127.0.0.1:4566", QueuePrefix: "q-", TopicPrefix: "t-",
			MissingTopic: sqs.CreateMissingTopic, KMSKey: "alias/shop", GroupHeader: "Tenant",
			Retention: 168 * time.Hour, Lease: time.Minute, ReceiveLimit: sqs.None, MaxMessage: 256 << 10,
			RawBody: true, WidePolicy: true, ShortDelays: true, EventTopics: sqs.ConcreteTopic,
		},
	} {
		got, err := sqs.ParseURL(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

func TestParseURLNamesTheWrongOption(t *testing.T) {
	for text, want := range map[string]string{
		"sqs://eu:hunter2":                          "not a valid URL",
		"sqs://key:hunter2@eu":                      "credentials come from",
		"amqp://hunter2":                            "want sqs://REGION",
		"sqs:hunter2":                               "want sqs://REGION",
		"sqs://eu/hunter2":                          "want sqs://REGION",
		"sqs://eu?profile=%zzhunter2":               "percent-encode",
		"sqs://eu?region=hunter2":                   `unknown option "region": want endpoint, `,
		"sqs://key:1?hunter2@eu":                    "credentials come from",
		"sqs://eu#hunter2":                          "want sqs://REGION",
		"sqs://eu?profile=hunter2&profile=x":        `option "profile" is set 2 times`,
		"sqs://eu?endpoint=hunter2":                 "option endpoint: no host",
		"sqs://eu?endpoint=http://a:hunter2":        "option endpoint: not a valid URL",
		"sqs://eu?receive_limit=many&kms_key=x":     "option receive_limit",
		"sqs://eu?retention=short&profile=x":        "option retention",
		"sqs://eu?raw_body=perhaps":                 "option raw_body",
		"sqs://eu?retention=1s&profile=hunter2":     "Retention 1s",
		"sqs://eu?missing_topic=no&profile=hunter2": `MissingTopic "no"`,
		"sqs://eu?event_topics=no&profile=hunter2":  `EventTopics "no": use "all", "both" or "concrete"`,
	} {
		_, err := sqs.ParseURL(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want an error with %q and without the URL", text, err, want)
		}
	}
}
