package acceptance_test

import (
	"hash/fnv"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqlite"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

// A scenario is a test that can run on several brokers. The test names them in a call of onBrokers:
// make test runs the scenario on the brokers that can break it, make test-faults on all of them.

// scenarios returns the tests that call onBrokers, by their names without Test. It is a function
// because a variable would refer to itself by way of onBrokers.
func scenarios() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"AckQueueMayVanish":           TestAckQueueMayVanish,
		"AttemptTimeoutOnBrokers":     TestAttemptTimeoutOnBrokers,
		"BrokerAwayDuringCommits":     TestBrokerAwayDuringCommits,
		"CloudReports":                TestCloudReports,
		"DeferredRetriesRunOut":       TestDeferredRetriesRunOut,
		"DeferredRetryFreesSlot":      TestDeferredRetryFreesSlot,
		"DeferredRetryOutlivesKills":  TestDeferredRetryOutlivesKills,
		"DeferredRetryOutlivesStop":   TestDeferredRetryOutlivesStop,
		"DeletedDestinationOfOutbox":  TestDeletedDestinationOfOutbox,
		"EqualMessagesWithoutID":      TestEqualMessagesWithoutID,
		"Fallbacks":                   TestFallbacks,
		"Features":                    TestFeatures,
		"FullErrorQueueOnRabbitMQ":    TestFullErrorQueueOnRabbitMQ,
		"FullHeadersOnRabbitMQ":       TestFullHeadersOnRabbitMQ,
		"IdleEndpointIsReadyAgain":    TestIdleEndpointIsReadyAgain,
		"InlineRetriesAreOneDelivery": TestInlineRetriesAreOneDelivery,
		"InstancesShareAttempts":      TestInstancesShareAttempts,
		"LargeID":                     TestLargeID,
		"LargeSends":                  TestLargeSends,
		"MalformedAddresses":          TestMalformedAddresses,
		"MessageNamesPolicy":          TestMessageNamesPolicy,
		"MessagesForNET":              TestMessagesForNET,
		"MixedOutboxInstances":        TestMixedOutboxInstances,
		"NonRetryableOnBrokers":       TestNonRetryableOnBrokers,
		"Pause":                       TestPause,
		"PostgresReports":             TestPostgresReports,
		"RateLimitOnRabbitMQ":         TestRateLimitOnRabbitMQ,
		"RecordedMessages":            TestRecordedMessages,
		"RetryAcknowledged":           TestRetryAcknowledged,
		"ReturnsOfServiceControl":     TestReturnsOfServiceControl,
		"ScheduleDeployments":         TestScheduleDeployments,
		"SendOnlyDrainsOutbox":        TestSendOnlyDrainsOutbox,
		"StopDuringInlineRetry":       TestStopDuringInlineRetry,
		"TwoEndpointsOneOutbox":       TestTwoEndpointsOneOutbox,
		"UserTransaction":             TestUserTransaction,
	}
}

const everyBroker = "TestChaosScenariosOnEveryBroker"

// Each scenario holds on each of its brokers. The short form takes those that make test leaves out,
// an eighth of them a day.
func TestChaosScenariosOnEveryBroker(t *testing.T) {
	t.Parallel()
	full := brokertest.Fault(t)
	if !full {
		t.Logf("day %d of %d", today(), sampleDays)
	}
	for name, test := range scenarios() {
		t.Run(name, test)
	}
}

// sampleDays is the number of days after which the short form has run each scenario on each broker.
const sampleDays = 8

func today() uint64 { return uint64(time.Now().Unix()/(24*60*60)) % sampleDays }

// onBrokers runs a scenario on the brokers of one list in make test, and on those of both lists in
// make test-faults.
func onBrokers(t *testing.T, first, others []string, test func(t *testing.T, broker string)) {
	t.Helper()
	scenario, everywhere := strings.CutPrefix(t.Name(), everyBroker+"/")
	brokers := first
	switch {
	case !everywhere && scenarios()[strings.TrimPrefix(t.Name(), "Test")] == nil:
		t.Fatalf("%s is not in the list of scenarios: %s would leave it out", t.Name(), everyBroker)
	case everywhere && brokertest.Fault(t):
		brokers = slices.Concat(first, others)
	case everywhere:
		brokers = slices.DeleteFunc(slices.Clone(others), func(broker string) bool {
			sum := fnv.New32a()
			_, _ = sum.Write([]byte(scenario + " " + broker))
			return uint64(sum.Sum32())%sampleDays != today()
		})
	}
	for _, broker := range brokers {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			if everywhere {
				t.Cleanup(func() {
					if t.Failed() {
						t.Logf("on any day: HOLDFAST_FAULTS=full go test ./endpoint/acceptance -run '^%s$/^%s$/^%s$'", everyBroker, scenario, broker)
					}
				})
			}
			test(t, broker)
		})
	}
}

// openBroker returns the transport of a broker of the test's own.
func openBroker(t *testing.T, broker string) transport.Transport {
	t.Helper()
	switch broker {
	case "memory":
		return &inmemory.Transport{}
	case notCounting:
		return &inmemory.Transport{Without: inmemory.Exact}
	case "sqlite":
		return &sqlite.Transport{Path: filepath.Join(t.TempDir(), "q.db"), Relaxed: true}
	case "postgres":
		return &postgres.Transport{URL: brokertest.Postgres(t)}
	case "quorum", "classic":
		return &rabbitmq.Transport{URL: brokertest.RabbitMQ(t), QueueType: rabbitmq.QueueType(broker)}
	case "servicebus":
		ns := brokertest.ServiceBus(t)
		return &asb.Transport{ConnectionString: ns.ConnectionString, Administration: ns.Admin}
	case "sqs":
		return &sqs.Transport{Endpoint: brokertest.SQS(t), Config: awsConfig(), QueuePrefix: brokertest.Name(t, "") + "-"}
	}
	t.Fatalf("there is no broker %q", broker)
	return nil
}

// notCounting is a broker in memory that does not count attempts.
const notCounting = "memory without counts"

// awsConfig is good for a stand-in, which takes any credentials.
func awsConfig() *aws.Config {
	return &aws.Config{Region: "eu-central-1", Credentials: credentials.NewStaticCredentialsProvider("test", "test", "")}
}
