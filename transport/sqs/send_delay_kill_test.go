package sqs

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// hopsOf names the endpoint whose messages a process of the test is to send on, until it is killed.
const hopsOf = "HOLDFAST_TEST_HOPS_OF"

// No message is lost or doubled when processes that forward delayed messages are killed.
func TestChaosKillsLoseNoHop(t *testing.T) {
	if endpoint := os.Getenv(hopsOf); endpoint != "" {
		work(t, hopper(t, endpoint, false), always)
		select {} // until it is killed
	}
	t.Parallel()
	messages, kills := 20, 4
	if brokertest.Fault(t) {
		messages, kills = 40, 8
	}
	endpoint := endpointWithHops(t)
	c := hopper(t, endpoint, false)
	due := map[string]time.Time{}
	for i := range messages {
		d := 3*time.Second + time.Duration(i)*200*time.Millisecond
		m := delayedMessage("m" + strconv.Itoa(i))
		due[m.ID] = time.Now().Add(d).Truncate(time.Millisecond) // the stand-in has milliseconds
		delayed(t, c, endpoint, m, d)
	}
	broker := brokertest.SQS(t)
	over := make(chan struct{})
	var last time.Time // kill
	go func() {
		defer close(over)
		for range kills {
			killAfter(t, broker, endpoint, 1200*time.Millisecond)
		}
		last = time.Now()
		work(t, hopper(t, endpoint, false), always)
	}()
	came, meanwhile := map[string]int{}, 0
	got := arrivals(t, c, endpoint, messages, patience)
	<-over
	for _, a := range got {
		came[a.ID]++
		if a.at.Before(last) {
			meanwhile++
		}
		if early := due[a.ID].Sub(a.at); early > 0 {
			t.Errorf("%s came %v early", a.ID, early)
		}
	}
	if meanwhile == 0 {
		t.Error("those who were killed have sent nothing on, which proves nothing")
	}
	t.Logf("%d of %d messages came before the last kill", meanwhile, messages)
	if len(came) != messages {
		t.Errorf("%d of %d messages came", len(came), messages)
	}
	for id, n := range came {
		if n != 1 {
			t.Errorf("%s came %d times", id, n)
		}
	}
}

// killAfter starts a process that sends on what hops, and kills it.
func killAfter(t *testing.T, broker, endpoint string, d time.Duration) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestChaosKillsLoseNoHop$", "-test.timeout="+patience.String())
	cmd.Env = append(os.Environ(), hopsOf+"="+endpoint, "HOLDFAST_TEST_SQS="+broker)
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return
	}
	<-time.After(d)
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
}
