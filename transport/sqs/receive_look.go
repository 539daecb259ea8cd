package sqs

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
)

// whereTimeout bounds the request for the account in an error.
const whereTimeout = 3 * time.Second

// looks records what was looked at once. The zero value is ready.
type looks struct {
	queues sync.Map // names of queues that were looked at
	topics sync.Map // ARNs of topics whose subscriptions have no raw delivery
	where  sync.Map // under "": region and account
}

// checkReceived returns an error if messages of a queue cannot be settled one by one. It logs, once
// for each queue of an endpoint, a redrive policy that may move messages before their retries are
// over.
func (c *conn) checkReceived(queue string) error {
	if strings.HasSuffix(queue, fifoSuffix) && !strings.HasSuffix(queue, delaySuffix) {
		return fmt.Errorf("sqs: queue %q: FIFO queues cannot be received from: a message that is retried would hold up its group. "+
			"Use a standard queue", queue)
	}
	if c.endpoint == "" || strings.HasSuffix(queue, delaySuffix) || queue == c.endpoint+DeadLettersSuffix {
		return nil
	}
	if _, again := c.looks.queues.LoadOrStore(queue, true); !again {
		c.tasks.Go(func() { c.lookAtRedrive(queue) })
	}
	return nil
}

func (c *conn) lookAtRedrive(queue string) {
	policy, err := c.redrive(c.ctx, queue)
	if err == nil && policy.most > 0 && policy.most < fewReceives {
		c.log.Warn("the queue has a redrive policy that may move messages before their retries are over: set its maxReceiveCount",
			"queue", queue, "maxReceiveCount", policy.most, "to", nameOf(policy.target), "advice", defaultReceiveLimit)
	}
}

// where returns the region and the account, for an error about a queue that does not exist: it may
// exist elsewhere. It returns "" if neither is known.
func (c *conn) where(ctx context.Context) string {
	if text, ok := c.looks.where.Load(""); ok {
		return text.(string) //nolint:errcheck,forcetypeassert // stored below
	}
	if c.region == "" || c.identity == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, whereTimeout)
	defer cancel()
	text := fmt.Sprintf(" in region %q", c.region)
	if who, err := call(ctx, c, c.identity, &sts.GetCallerIdentityInput{}); err == nil {
		text += fmt.Sprintf(" of account %q", value(who.Account))
		c.looks.where.Store("", text)
	}
	return text
}

// warnOfEnvelope logs, once for each topic, that a message has an envelope of SNS's, and that its
// body is the envelope.
func (in *inFlight) warnOfEnvelope(m *types.Message) {
	body := value(m.Body)
	if !strings.HasPrefix(body, "{") || !strings.Contains(body, `"TopicArn"`) || !strings.Contains(body, `"Notification"`) {
		return
	}
	var e struct{ Type, TopicArn, Message string }
	if json.Unmarshal([]byte(body), &e) != nil || e.Type != "Notification" || nameOf(e.TopicArn) == e.TopicArn || in.conn.unknowns.Load() >= maxUnknown {
		return
	}
	if _, again := in.conn.looks.topics.LoadOrStore(e.TopicArn, true); !again {
		in.conn.unknowns.Add(1)
		in.conn.log.Warn("a subscription delivers messages in SNS's envelope, so the envelope is their body: set RawMessageDelivery on the "+
			"subscription, or subscribe the endpoint again", "queue", in.queue, "topic", nameOf(e.TopicArn))
	}
}
