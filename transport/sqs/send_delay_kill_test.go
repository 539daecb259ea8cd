package sqs

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// hopsOf names the endpoint whose messages a process of the test is to send on, until it is killed.
const hopsOf = "HOLDFAST_TEST_HOPS_OF"

// sentOn is what that process prints when it has sent a message on.
const sentOn = "sent on"

// No message is lost or doubled when processes that forward delayed messages are killed.
func TestChaosKillsLoseNoHop(t *testing.T) {
	if endpoint := os.Getenv(hopsOf); endpoint != "" {
		work(t, hopper(t, endpoint, false, hopLease), always)
		select {} // until it is killed
	}
	t.Parallel()
	messages, kills := 20, 4
	if brokertest.Fault(t) {
		messages, kills = 40, 8
	}
	endpoint := endpointWithHops(t)
	c := hopper(t, endpoint, false, longLease)
	due := map[string]time.Time{}
	for i := range messages {
		d := 3*time.Second + time.Duration(i)*400*time.Millisecond // the last ones outlast the kills
		m := delayedMessage("m" + strconv.Itoa(i))
		due[m.ID] = time.Now().Add(d).Truncate(time.Millisecond) // the stand-in has milliseconds
		delayed(t, c, endpoint, m, d)
	}
	broker := brokertest.SQS(t)
	over := make(chan struct{})
	var last time.Time // kill
	busy := 0          // those who were killed after they had sent a message on
	go func() {
		defer close(over)
		for busy < kills && killAfter(t, broker, endpoint, 1200*time.Millisecond) {
			busy++
		}
		last = time.Now()
		work(t, hopper(t, endpoint, false, hopLease), always)
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
	if busy == 0 {
		t.Error("those who were killed have sent nothing on, which proves nothing")
	}
	t.Logf("%d were killed, and %d of %d messages came before the last kill", busy, meanwhile, messages)
	if len(came) != messages {
		t.Errorf("%d of %d messages came", len(came), messages)
	}
	for id, n := range came {
		if n != 1 {
			t.Errorf("%s came %d times", id, n)
		}
	}
}

// killAfter starts a process that sends on what hops, and kills it d after it has done so for the
// first time. It returns false if nothing is left to be sent on.
func killAfter(t *testing.T, broker, endpoint string, d time.Duration) bool {
	cmd := exec.Command(os.Args[0], "-test.run=^TestChaosKillsLoseNoHop$", "-test.timeout="+patience.String())
	cmd.Env = append(os.Environ(), hopsOf+"="+endpoint, "HOLDFAST_TEST_SQS="+broker)
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Error(err)
		return false
	}
	never := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	found := false
	for lines := bufio.NewScanner(stdout); !found && lines.Scan(); {
		found = lines.Text() == sentOn
	}
	never.Stop()
	if found {
		go func() { _, _ = io.Copy(io.Discard, stdout) }() // so that it can print
		<-time.After(d)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	return found
}
