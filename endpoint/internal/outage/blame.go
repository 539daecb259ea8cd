package outage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/transport"
)

// BlameMessage returns the failure of a message that the database would not store, while the
// database stores other messages.
func BlameMessage(err error) error {
	if errors.Is(err, transport.ErrDenied) {
		return fmt.Errorf("the database stores other messages, and not this one: the handler has left its transaction with another role "+
			"(SET ROLE, SET SESSION AUTHORIZATION), which lacks a right of the endpoint's: end it with RESET ROLE: %w", err)
	}
	return fmt.Errorf("the database stores other messages, and not this one: %w", err)
}

// BlameConnection returns the failure of a message whose handler breaks its connection to the
// database at each attempt.
func BlameConnection(err error) error { return &brokenError{errtree.Mark{Err: err}} }

type brokenError struct{ errtree.Mark }

func (e *brokenError) Error() string {
	return "the handler's connection to the database breaks at each attempt, and others do not: " + e.Mark.Error()
}

// FaultClass makes the class of the failure "connection".
func (e *brokenError) FaultClass() string { return "connection" }

// maxImpeded is the time after which a message fails, if each attempt finds a full disk, while the
// database stores other messages.
const maxImpeded = 10 * time.Minute

// Impediment is the time in which the attempts at one delivery find a full disk, and the database
// stores other messages: the disk of one tablespace is full, or a query of the handler fills the
// disk by itself. The message waits, and no other message waits.
type Impediment struct {
	since time.Time // zero before the first such attempt
	pause backoff.Backoff
}

// Next returns the pause before the next attempt at the message of d, after an attempt that failed
// with err. If the message has waited for long, Next returns the failure of the message.
func (p *Impediment) Next(
	ctx context.Context, d *settle.Delivery, err error,
) (pause time.Duration, failure error) {
	if p.since.IsZero() {
		p.since, p.pause = time.Now(), backoff.Backoff{Min: minPause, Max: MaxPause}
		d.Log.WarnContext(ctx, "a message finds that the database is full, and the database stores "+
			"others: the message waits without using up a retry", slog.String("message", d.LogID()),
			slog.Duration("at_most", maxImpeded), slog.Any("error", err))
	} else if time.Since(p.since) >= maxImpeded {
		return 0, &impededError{errtree.Mark{Err: err}}
	}
	return p.pause.Next(), nil
}

// impededError is the failure of a message that was impeded for long.
type impededError struct{ errtree.Mark }

func (e *impededError) Error() string {
	return fmt.Sprintf("the database stores other messages, and not this one for %v: %v", maxImpeded,
		e.Mark.Error())
}
