package process

import (
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint/internal/audit"
	"github.com/holdfast-go/holdfast/endpoint/internal/inbox"
	"github.com/holdfast-go/holdfast/endpoint/internal/keylock"
	"github.com/holdfast-go/holdfast/endpoint/internal/outbox"
	"github.com/holdfast-go/holdfast/endpoint/internal/quarantine"
	"github.com/holdfast-go/holdfast/endpoint/internal/throttle"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// The order of the guards is part of what the endpoint promises: see compose.
func TestGuardsAreAskedInOrder(t *testing.T) {
	all := &Shared{
		Auditor: audit.Auditor{AuditQueue: "audit"}, CompletesFirst: true,
		Throttle: throttle.New(recoverability.RateLimit{After: 1}, nil, nil),
		Locks:    new(keylock.Locks), Slow: new(pump.SlowStart), Outbox: new(outbox.Outbox), Inbox: new(inbox.Inbox),
		Quarantine: new(quarantine.Quarantine), Translate: func(*transport.Message) {},
	}
	for _, tt := range []struct {
		name string
		of   *Shared
		want []string
	}{
		{"without options", new(Shared), []string{
			"ordinary arrival: forwardRow mayWait moveDecided",
			"ordinary admission:",
			"ordinary attempt: refuseUndecodable",
			"ordinary ends:",
			"quarantine arrival: forwardRow moveDecided leaveQuarantine",
			"quarantine admission:",
			"quarantine attempt: refuseUndecodable refuseParked",
			"quarantine ends:",
			"satellite arrival: forwardRow moveDecided",
			"satellite admission:",
			"satellite attempt:",
			"satellite ends:",
		}},
		{"with all of them", all, []string{
			"ordinary arrival: startSlowly translate passKeys forwardRow mayWait moveDecided joinLimit",
			"ordinary admission: awaitTurn",
			"ordinary attempt: startClock completeFirst refuseUndecodable countSlowStart refuseOverfull recognize suspect",
			"ordinary ends: giveUpKeys passTurn",
			"quarantine arrival: translate forwardRow moveDecided leaveQuarantine",
			"quarantine admission:",
			"quarantine attempt: startClock completeFirst refuseUndecodable refuseOverfull recognize refuseParked",
			"quarantine ends: giveUpKeys",
			"satellite arrival: translate forwardRow moveDecided",
			"satellite admission:",
			"satellite attempt:",
			"satellite ends:",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := New(tt.of)
			var got []string
			for _, road := range []struct {
				name string
				road
			}{{"ordinary", r.road}, {"quarantine", r.quarantine}, {"satellite", r.satellite}} {
				got = append(got,
					road.name+" arrival:"+functionNames(road.arrival),
					road.name+" admission:"+functionNames(road.admission),
					road.name+" attempt:"+functionNames(road.attempt),
					road.name+" ends:"+functionNames(road.ends))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("guards (-want +got):\n%s", diff)
			}
		})
	}
}

// functionNames returns the names of functions, each behind a space.
func functionNames[F any](functions []F) string {
	var b strings.Builder
	for _, f := range functions {
		name := runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name()
		b.WriteString(" " + name[strings.LastIndex(name, ".")+1:])
	}
	return b.String()
}
