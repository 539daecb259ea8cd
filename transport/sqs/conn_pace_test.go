package sqs

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	snstypes "github.com/aws/aws-sdk-go-v2/service/sns/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/holdfast-go/holdfast/transport"
)

// fakeTopics is SNS as a test wants it. A method that is not here panics.
type fakeTopics struct {
	topicAPI

	mu       sync.Mutex // guards what follows
	requests int
	max      string // the topics' MaximumMessageSize
	denied   bool   // looking at topics
	sent     []snstypes.PublishBatchRequestEntry
	on       func(request int) ([]snstypes.BatchResultErrorEntry, error)
}

func (f *fakeTopics) PublishBatch(_ context.Context, in *sns.PublishBatchInput, _ ...func(*sns.Options)) (*sns.PublishBatchOutput, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests++
	if f.on != nil {
		if failed, err := f.on(f.requests); err != nil || failed != nil {
			return &sns.PublishBatchOutput{Failed: failed}, err
		}
	}
	f.sent = append(f.sent, in.PublishBatchRequestEntries...)
	return &sns.PublishBatchOutput{}, nil
}

func (f *fakeTopics) GetTopicAttributes(context.Context, *sns.GetTopicAttributesInput, ...func(*sns.Options)) (*sns.GetTopicAttributesOutput, error) {
	if f.denied {
		return nil, answer(403, "AuthorizationError")
	}
	return &sns.GetTopicAttributesOutput{Attributes: map[string]string{"MaximumMessageSize": f.max}}, nil
}

type fakeIdentity struct{}

func (fakeIdentity) GetCallerIdentity(context.Context, *sts.GetCallerIdentityInput, ...func(*sts.Options)) (*sts.GetCallerIdentityOutput, error) {
	return &sts.GetCallerIdentityOutput{Account: aws.String("000000000000"), Arn: aws.String("arn:aws:iam::000000000000:user/u")}, nil
}

// openTopics is a connection of a tool, with queues and topics of the test's.
func openTopics(t *testing.T, queues *fake, topics *fakeTopics) *conn {
	t.Helper()
	by := clients{queues: queues, topics: topics, identity: fakeIdentity{}.GetCallerIdentity, region: "eu-central-1", close: func() {}}
	c, err := openConn(t.Context(), (&Transport{}).withDefaults(), by, transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func sends(n int) (ops []transport.Operation) {
	for i := range n {
		ops = append(ops, send(strconv.Itoa(i)))
	}
	return ops
}

func publishes(n int) []transport.Operation {
	ops := sends(n)
	for i := range ops {
		ops[i].Queue, ops[i].Types = "", []string{"Shop.Placed"}
	}
	return ops
}

var throttles = []string{
	"RequestThrottled", "ThrottlingException", "Throttled", "ThrottledException", "KMSThrottling", "KmsThrottled", "KMS.ThrottlingException",
}

func TestAThrottleIsFollowedByOneRequestASecond(t *testing.T) {
	for _, code := range throttles {
		for _, topic := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var times []time.Duration
				throttle := func() error {
					times = append(times, time.Since(began))
					if time.Since(began) < 10*time.Second {
						return answer(400, code)
					}
					return nil
				}
				queues := &fake{onSend: func(int, int) (failedEntries, error) { return nil, throttle() }}
				topics := &fakeTopics{on: func(int) ([]snstypes.BatchResultErrorEntry, error) { return nil, throttle() }}
				c := openTopics(t, queues, topics)
				ops := sends(10)
				if topic {
					ops = publishes(10)
				}
				for {
					_, err := c.Dispatch(t.Context(), ops)
					if err == nil {
						break
					}
					if failed, ok := errors.AsType[*transport.DispatchError](err); !ok || len(failed.Ops) != 10 || !errors.Is(failed.Ops[0].Err, transport.ErrUnreachable) {
						t.Fatalf("%s: %v, want all ten unreachable", code, err)
					}
				}
				for i, at := range times[1:] {
					if at-times[i] < time.Second {
						t.Fatalf("%s: requests at %v, want one a second at most", code, times)
					}
				}
				if len(times) < 8 || len(queues.sent)+len(topics.sent) != 10 {
					t.Errorf("%s: %d requests, %d messages sent", code, len(times), len(queues.sent)+len(topics.sent))
				}
				before := time.Now()
				if _, err := c.Dispatch(t.Context(), ops); err != nil || time.Since(before) >= time.Second {
					t.Errorf("%s: after a success: %v after %v", code, err, time.Since(before))
				}
			})
		}
	}
}

func TestADenialOfARequestIsOneRequestWithAdvice(t *testing.T) {
	for code, advice := range map[string]string{
		"AccessDenied": "lack the right", "KMSAccessDenied": "KMS key", "KmsAccessDenied": "KMS key", "KMS.AccessDeniedException": "KMS key",
		"KMSDisabled": "KMS key", "KmsInvalidState": "KMS key", "KMSNotFound": "KMS key",
	} {
		for _, topic := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				denial := func() error { return answer(400, code) }
				queues := &fake{onSend: func(int, int) (failedEntries, error) { return nil, denial() }}
				topics := &fakeTopics{on: func(int) ([]snstypes.BatchResultErrorEntry, error) { return nil, denial() }}
				c := openTopics(t, queues, topics)
				ops := sends(10)
				if topic {
					ops = publishes(10)
				}
				for want := 1; want <= 3; want++ {
					began := time.Now()
					_, err := c.Dispatch(t.Context(), ops)
					if err == nil || !strings.Contains(err.Error(), advice) || errors.Is(err, transport.ErrUnreachable) {
						t.Errorf("%s: %v, want a refusal with advice", code, err)
					}
					if n := queues.requests["send"] + topics.requests; n != want {
						t.Errorf("%s: %d requests for %d batches of ten", code, n, want)
					}
					if want > 1 && time.Since(began) < 900*time.Millisecond {
						t.Errorf("%s: the next request came after %v", code, time.Since(began))
					}
				}
				other := send("m")
				other.Queue = "other"
				queues.onSend = nil
				began := time.Now()
				if _, err := c.Dispatch(t.Context(), []transport.Operation{other}); err != nil || time.Since(began) >= time.Second {
					t.Errorf("%s: another queue: %v after %v", code, err, time.Since(began))
				}
			})
		}
	}
}

// Denials of requests in flight at the same time begin one pace, and not one each.
func TestDenialsAreFollowedByOneRequestASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openTopics(t, &fake{}, &fakeTopics{})
		var (
			mu    sync.Mutex // guards times
			times []time.Time
			all   sync.WaitGroup
		)
		for i := range maxFlushers {
			all.Go(func() {
				for range 3 {
					_ = c.paced(t.Context(), "out", func() error { // denied each time
						mu.Lock()
						times = append(times, time.Now())
						mu.Unlock()
						time.Sleep(time.Duration(i) * 10 * time.Millisecond)
						return answer(400, "AccessDenied")
					})
				}
			})
		}
		all.Wait()
		for i := maxFlushers + 1; i < len(times); i++ {
			if after := times[i].Sub(times[i-1]); after < 900*time.Millisecond {
				t.Errorf("request %d came %v after the one before", i, after)
			}
		}
	})
}

func TestABatchRefusedForOneOfItsMessagesIsSplitAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queues := &fake{}
		queues.onSend = func(_, n int) (failedEntries, error) {
			if n > 1 {
				return nil, answer(400, "InvalidMessageContents")
			}
			return nil, nil
		}
		c := openTopics(t, queues, &fakeTopics{})
		began := time.Now()
		if _, err := c.Dispatch(t.Context(), sends(10)); err != nil || queues.requests["send"] != 11 || time.Since(began) >= time.Second {
			t.Errorf("%v, %d requests, after %v", err, queues.requests["send"], time.Since(began))
		}
	})
}

func TestAThrottledReceiveIsRepeatedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var times []time.Time
		f := &fake{onReceive: func() error { times = append(times, time.Now()); return answer(400, "KMS.ThrottlingException") }}
		r := openFakeReceiver(t, openFake(t, f, nil))
		for range 5 {
			if _, err := r.Receive(t.Context(), 1); err == nil {
				t.Error("no error")
			}
		}
		for i, at := range times[1:] {
			if at.Sub(times[i]) < time.Second {
				t.Errorf("requests at %v", times)
			}
		}
	})
}

func TestFailedEntriesOfAPublishAreErrors(t *testing.T) {
	t.Parallel()
	topics := &fakeTopics{on: func(request int) ([]snstypes.BatchResultErrorEntry, error) {
		if request > 1 {
			return []snstypes.BatchResultErrorEntry{{Id: aws.String("0"), Code: aws.String("InternalError")}}, nil
		}
		return []snstypes.BatchResultErrorEntry{
			{Id: aws.String("1"), Code: aws.String("InvalidParameter"), SenderFault: true},
			{Id: aws.String("2"), Code: aws.String("InternalError")},
			{Id: aws.String("3"), Code: aws.String("KMSThrottling"), SenderFault: true},
		}, nil
	}}
	c := openTopics(t, &fake{}, topics)
	_, err := c.Dispatch(t.Context(), publishes(4))
	failed, ok := errors.AsType[*transport.DispatchError](err)
	if !ok || len(failed.Ops) != 3 {
		t.Fatalf("%v, want three failed operations", err)
	}
	for i, unreachable := range []bool{false, true, true} {
		if op := failed.Ops[i]; op.Index != i+1 || errors.Is(op.Err, transport.ErrUnreachable) != unreachable {
			t.Errorf("operation %d: %v", op.Index, op.Err)
		}
	}
}

func TestARequestSharedBySendersStaysWithinTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			mu      sync.Mutex // guards largest
			largest int
		)
		c := openFake(t, &fake{}, nil)
		b := c.senderTo(destination{queue: "out"}, c.cfg.MaxMessage, func(es []entry) ([]error, []int) {
			size := 0
			for _, e := range es {
				size += e.size()
			}
			mu.Lock()
			defer mu.Unlock()
			largest = max(largest, size)
			return make([]error, len(es)), nil
		})
		for range 4 {
			b.Submit(entry{payload: payload{body: strings.Repeat("x", 400_000)}})
		}
		time.Sleep(time.Second)
		mu.Lock()
		defer mu.Unlock()
		if largest == 0 || largest > maxMessage {
			t.Errorf("a request has %d bytes, SQS takes %d", largest, maxMessage)
		}
	})
}

func TestATopicMaySayThatItTakesMore(t *testing.T) {
	t.Parallel()
	for max, sent := range map[string]int{"1048576": 1, "": 0, "262144": 0} {
		for _, denied := range []bool{false, true} {
			topics := &fakeTopics{max: max, denied: denied}
			c := openTopics(t, &fake{}, topics)
			ops := publishes(1)
			ops[0].Message.Body = make([]byte, 400_000)
			_, err := c.Dispatch(t.Context(), ops)
			if want := sent == 1 && !denied; len(topics.sent) == 1 != want || errors.Is(err, transport.ErrTooLarge) == want {
				t.Errorf("limit %q, denied %v: %v, %d sent", max, denied, err, len(topics.sent))
			}
		}
	}
}
