package baddays_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// documentedPolicy is the policy of an endpoint in docs/transports/sqs.md: the first JSON of the
// part about rights.
func documentedPolicy(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/transports/sqs.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rights, ok := strings.Cut(string(page), "\n## Rights\n")
	_, policy, begins := strings.Cut(rights, "```json\n")
	policy, _, ends := strings.Cut(policy, "```")
	if !ok || !begins || !ends {
		t.Fatal("docs/transports/sqs.md has no policy under Rights")
	}
	return policy
}

// sqsRights runs an endpoint and looks at queues with the documented rights and nothing more.
func sqsRights(t *testing.T) outcome {
	a := newAccount(t)
	a.install()
	a.front.Refuse(brokertest.SQSRights(t, documentedPolicy(t), a.prefix))
	began := time.Now()
	e := a.run(func(cfg *endpoint.Config) {
		cfg.AuditQueue = "audit"
		cfg.Messages = append(cfg.Messages, endpoint.Event[sqsDone]("Shop.Done"))
		cfg.Recoverability = recoverability.Config{Immediate: 1, Delayed: recoverability.None}
	}, func(ctx context.Context, s *endpoint.Session, m sqsJob) error {
		if m.N == 1 {
			return errors.New("it fails each time")
		}
		return s.Send(ctx, m, endpoint.To("billing"))
	})
	a.send("sales", 0, 1, 2)
	took := a.until("the endpoint is ready", func() bool { h := e.Health(); return h.Ready && len(h.Warnings) == 0 }) + time.Since(began)
	a.until("the messages are where they belong", func() bool {
		return a.depth("sales") == 0 && a.depth("billing") == 2 && a.depth("error") == 1 && a.depth("audit") == 2
	})
	tool, err := a.tr.Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatalf("a tool: %v", err)
	}
	stats, err := tool.(transport.Inspector).Inspect(t.Context(), "sales", "error", "audit")
	if err != nil || stats[1].Ready != 1 {
		t.Errorf("a tool sees %+v, %v", stats, err)
	}
	if err := tool.Close(); err != nil {
		t.Error(err)
	}
	return outcome{message: "handled, sent, audited or in the error queue", neighbours: "the commands see the queues", normal: took}
}

// sqsDone is an event without subscribers.
type sqsDone struct{}
