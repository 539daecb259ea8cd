package sqs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sns"
	snstypes "github.com/aws/aws-sdk-go-v2/service/sns/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/holdfast-go/holdfast/transport"
)

// fakeAWS is what the tests need of SQS and SNS, with what an emulator does not do: attributes that
// show late, rights that lack.
type fakeAWS struct {
	queueAPI
	topicAPI

	mu         sync.Mutex
	policies   []string      // of the one queue, in the order in which they were written
	shows      time.Duration // after how long
	created    time.Time     // the queue; zero: before the test
	written    []time.Time
	takes      time.Duration   // it to write one
	denied     map[string]bool // operations
	subscribed map[string]bool // topics
	topicNames map[string]bool // that exist
}

func newAWS() *fakeAWS {
	return &fakeAWS{denied: map[string]bool{}, subscribed: map[string]bool{}, topicNames: map[string]bool{}}
}

func (a *fakeAWS) refuse(operation string) error {
	if a.denied[operation] {
		return &smithy.GenericAPIError{Code: "AccessDenied", Message: "no right to " + operation}
	}
	return nil
}

//nolint:revive,staticcheck // it is the SDK that calls it so
func (a *fakeAWS) GetQueueUrl(context.Context, *sqs.GetQueueUrlInput, ...func(*sqs.Options)) (*sqs.GetQueueUrlOutput, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.created.IsZero() && time.Since(a.created) < a.shows {
		return nil, &types.QueueDoesNotExist{}
	}
	url := "https://sqs.eu-central-1.amazonaws.com/123456789012/billing"
	return &sqs.GetQueueUrlOutput{QueueUrl: &url}, nil
}

func (a *fakeAWS) GetQueueAttributes(context.Context, *sqs.GetQueueAttributesInput, ...func(*sqs.Options)) (*sqs.GetQueueAttributesOutput, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.created.IsZero() && time.Since(a.created) < a.shows {
		return nil, &types.QueueDoesNotExist{}
	}
	attributes := map[string]string{"QueueArn": testQueueARN}
	for i, text := range a.policies {
		if time.Since(a.written[i]) >= a.shows {
			attributes["Policy"] = text
		}
	}
	return &sqs.GetQueueAttributesOutput{Attributes: attributes}, a.refuse("GetQueueAttributes")
}

func (a *fakeAWS) CreateQueue(context.Context, *sqs.CreateQueueInput, ...func(*sqs.Options)) (*sqs.CreateQueueOutput, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.created = time.Now()
	url := "https://sqs.eu-central-1.amazonaws.com/123456789012/billing"
	return &sqs.CreateQueueOutput{QueueUrl: &url}, nil
}

func (a *fakeAWS) SetQueueAttributes(_ context.Context, in *sqs.SetQueueAttributesInput, _ ...func(*sqs.Options)) (*sqs.SetQueueAttributesOutput, error) {
	time.Sleep(a.takes)
	return &sqs.SetQueueAttributesOutput{}, a.write(in.Attributes["Policy"])
}

func (a *fakeAWS) write(policy string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.refuse("SetQueueAttributes"); err != nil {
		return err
	}
	a.policies, a.written = append(a.policies, policy), append(a.written, time.Now())
	return nil
}

func (a *fakeAWS) CreateTopic(_ context.Context, in *sns.CreateTopicInput, _ ...func(*sns.Options)) (*sns.CreateTopicOutput, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.refuse("CreateTopic"); err != nil {
		return nil, err
	}
	a.topicNames[*in.Name] = true
	arn := testTopics + *in.Name
	return &sns.CreateTopicOutput{TopicArn: &arn}, nil
}

func (a *fakeAWS) Subscribe(_ context.Context, in *sns.SubscribeInput, _ ...func(*sns.Options)) (*sns.SubscribeOutput, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.topicNames[nameOf(*in.TopicArn)] {
		return nil, &snstypes.NotFoundException{}
	}
	a.subscribed[nameOf(*in.TopicArn)] = in.Attributes[rawDelivery] == "true" && *in.Endpoint == testQueueARN
	return &sns.SubscribeOutput{}, a.refuse("Subscribe")
}

func (a *fakeAWS) open(t *testing.T, cfg Transport) *conn {
	t.Helper()
	c, err := openConn(t.Context(), cfg.withDefaults(), clients{queues: a, topics: a, region: "eu-central-1", close: func() {}},
		transport.Env{Endpoint: "billing", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// last is the policy that the queue has in the end.
func (a *fakeAWS) last(t *testing.T) *policy {
	t.Helper()
	if len(a.policies) == 0 {
		t.Fatal("no policy was written")
	}
	return testPolicy(t, a.policies[len(a.policies)-1])
}

func TestASubscriberLetsItsTopicsInAndReadsThatBack(t *testing.T) {
	for _, shows := range []time.Duration{0, 5 * time.Second, 55 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			a := newAWS()
			a.shows = shows
			if err := a.open(t, Transport{}).Subscribe(t.Context(), "billing", []string{"Shop.A", "Shop.B"}); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"Shop-A", "Shop-B"} {
				if !a.last(t).allows(testQueueARN, testTopics+name) {
					t.Errorf("shown after %v: %s is not let in", shows, name)
				}
				if !a.subscribed[name] {
					t.Errorf("there is no raw subscription to %s", name)
				}
			}
		})
	}
}

func TestAPolicyThatLetsTheTopicsInIsNotWritten(t *testing.T) {
	a := newAWS()
	if err := a.write(`{"Statement":[{"Effect":"Allow","Principal":"*","Action":"sqs:*","Resource":"*"}]}`); err != nil {
		t.Fatal(err)
	}
	a.denied["SetQueueAttributes"] = true
	if err := a.open(t, Transport{}).Subscribe(t.Context(), "billing", []string{"Shop.A"}); err != nil {
		t.Fatal(err)
	}
}

// Two installers that read the policy at the same time overwrite each other's: both are let in all
// the same.
func TestSubscribersThatWriteAtOnceAreAllLetIn(t *testing.T) {
	for _, subscribers := range []int{2, 5} {
		synctest.Test(t, func(t *testing.T) {
			a := newAWS()
			a.takes = 50 * time.Millisecond // so that others read before
			var all sync.WaitGroup
			for i := range subscribers {
				all.Go(func() {
					if err := a.open(t, Transport{}).Subscribe(t.Context(), "billing", []string{fmt.Sprint("Shop.", i)}); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			for i := range subscribers {
				if !a.last(t).allows(testQueueARN, fmt.Sprint(testTopics, "Shop-", i)) {
					t.Errorf("topic %d of %d is not let in", i, subscribers)
				}
			}
		})
	}
}

func TestAPolicyThatOthersKeepChangingIsAnErrorInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAWS()
		a.shows = time.Hour
		err := a.open(t, Transport{}).Subscribe(t.Context(), "billing", []string{"Shop.A"})
		if err == nil || !strings.Contains(err.Error(), "does not let in its topics, although it was written several times: another program") {
			t.Errorf("the error is %v", err)
		}
	})
}

func TestAWidePolicyLetsInAllTopicsOfThePrefix(t *testing.T) {
	t.Parallel()
	a := newAWS()
	c := a.open(t, Transport{TopicPrefix: "test-", WidePolicy: true})
	if err := c.Subscribe(t.Context(), "billing", []string{"Shop.A"}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"test-Shop-A": true, "test-z": true, "prod-z": false} {
		if got := a.last(t).allows(testQueueARN, testTopics+name); got != want {
			t.Errorf("%s is let in: %v, want %v", name, got, want)
		}
	}
}

// A base type may have more derived types than a policy has room for.
func TestASubscriberToManyTypesIsToldOfTheWidePolicy(t *testing.T) {
	t.Parallel()
	types := make([]string, 200)
	for i := range types {
		types[i] = fmt.Sprint("Shop.Orders.OrderEventNumber", i)
	}
	for wide, want := range map[bool]string{false: "Transport.WidePolicy", true: ""} {
		a := newAWS()
		err := a.open(t, Transport{WidePolicy: wide, EventTopics: ConcreteTopic}).Subscribe(t.Context(), "billing", types)
		if (err == nil) != wide || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("WidePolicy %v: %v", wide, err)
		}
		if n := len(a.subscribed); wide && n != len(types) || !wide && n != 0 {
			t.Errorf("WidePolicy %v: subscribed to %d topics", wide, n)
		}
	}
}

// A subscriber without the right to create topics subscribes to topics that exist.
func TestSubscribingToExistingTopicsNeedsNoRight(t *testing.T) {
	t.Parallel()
	a := newAWS()
	a.denied["CreateTopic"] = true
	a.topicNames["Shop-A"] = true
	c := a.open(t, Transport{})
	if err := c.Subscribe(t.Context(), "billing", []string{"Shop.A"}); err != nil {
		t.Fatal(err)
	}
	err := c.Subscribe(t.Context(), "billing", []string{"Shop.B"})
	if err == nil || !strings.Contains(err.Error(), `topic "Shop-B", which does not exist`) {
		t.Errorf("a topic that does not exist: %v", err)
	}
}

// A subscriber without the right to change the policy gets an error with advice.
func TestADeniedChangeOfThePolicyComesWithAdvice(t *testing.T) {
	a := newAWS()
	a.denied["SetQueueAttributes"] = true
	err := a.open(t, Transport{}).Subscribe(t.Context(), "billing", []string{"Shop.A"})
	if err == nil || !strings.Contains(err.Error(), "holdfast sqs policy set") || !strings.Contains(err.Error(), testTopics+"Shop-A") {
		t.Errorf("the error is %v", err)
	}
	if denied, ok := errors.AsType[smithy.APIError](err); !ok || denied.ErrorCode() != "AccessDenied" {
		t.Errorf("%v does not wrap what AWS said", err)
	}
}

// SQS takes a while until a queue that it has created is known to all of it.
func TestInstallWaitsUntilWhatItCreatedIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAWS()
		c := a.open(t, Transport{ReceiveLimit: None})
		c.urls.forget("billing")
		a.created, a.shows = time.Now().Add(time.Hour), 3*time.Second // it is not there
		if err := c.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "billing"}}}); err != nil {
			t.Fatal(err)
		}
		if since := time.Since(a.created); since < 3*time.Second || since > 6*time.Second {
			t.Errorf("Install returned %v after it created the queue", since)
		}
	})
}
