package recoverability

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/resilience"
)

var mail = resilience.Policy{Name: "mail", Retry: resilience.Retry{
	Max: 4, Delay: 10 * time.Second, Backoff: resilience.Exponential, MaxDelay: time.Minute,
}}

func retrying(use resilience.Use) Config { return Config{Rules: []Rule{{Retry: use}}} }

func TestAPolicyDecidesByItsOwnNumbers(t *testing.T) {
	giveUp := MoveToError{Queue: "error"}
	panicked := fault{"panic"}
	for name, test := range map[string]struct {
		use    resilience.Use
		change func(*Failure)
		want   Action
	}{
		"inline, first":            {resilience.Inline(mail), func(*Failure) {}, RetryInline{10 * time.Second}},
		"inline, third":            {resilience.Inline(mail), func(f *Failure) { f.Inline = 2 }, RetryInline{40 * time.Second}},
		"inline, at the bound":     {resilience.Inline(mail), func(f *Failure) { f.Inline = 3 }, RetryInline{time.Minute}},
		"inline, used up":          {resilience.Inline(mail), func(f *Failure) { f.Inline = 4 }, giveUp},
		"inline, redelivered":      {resilience.Inline(mail), func(f *Failure) { f.Attempt, f.Immediate, f.Delayed = 9, 9, 9 }, RetryInline{10 * time.Second}},
		"inline, a panic":          {resilience.Inline(mail), func(f *Failure) { f.Err = panicked }, giveUp},
		"inline, in quarantine":    {resilience.Inline(mail), func(f *Failure) { f.Quarantined = 4 }, Delay{10 * time.Second}},
		"inline, there again":      {resilience.Inline(mail), func(f *Failure) { f.Quarantined, f.Delayed = 4, 1 }, giveUp},
		"deferred, first":          {resilience.Deferred(mail), func(*Failure) {}, Delay{10 * time.Second}},
		"deferred, redelivered":    {resilience.Deferred(mail), func(f *Failure) { f.Attempt, f.Immediate = 9, 9 }, Delay{10 * time.Second}},
		"deferred, used up":        {resilience.Deferred(mail), func(f *Failure) { f.Delayed = 4 }, giveUp},
		"deferred, far over":       {resilience.Deferred(mail), func(f *Failure) { f.Delayed = math.MaxInt }, giveUp},
		"deferred, negative":       {resilience.Deferred(mail), func(f *Failure) { f.Delayed = -7 }, Delay{10 * time.Second}},
		"deferred, a panic":        {resilience.Deferred(mail), func(f *Failure) { f.Err = panicked }, Delay{10 * time.Second}},
		"deferred, after days":     {resilience.Deferred(mail), func(f *Failure) { f.FirstFailure = f.Now.Add(-72 * time.Hour) }, Delay{10 * time.Second}},
		"retry after":              {resilience.Deferred(mail), func(f *Failure) { f.Err = RetryAfter(f.Err, 3*time.Second) }, Delay{3 * time.Second}},
		"retry after the bound":    {resilience.Deferred(mail), func(f *Failure) { f.Err = RetryAfter(f.Err, time.Hour) }, Delay{time.Minute}},
		"retry after, inline":      {resilience.Inline(mail), func(f *Failure) { f.Err = RetryAfter(f.Err, 3*time.Second) }, RetryInline{3 * time.Second}},
		"retry after days, inline": {resilience.Inline(resilience.Policy{Name: "x", Retry: resilience.Retry{Max: 3}}), func(f *Failure) { f.Err = RetryAfter(f.Err, 48*time.Hour) }, RetryInline{time.Hour}},
		"unrecoverable":            {resilience.Inline(mail), func(f *Failure) { f.Err = Unrecoverable(f.Err) }, giveUp},
		"non-retryable":            {resilience.Deferred(mail), func(f *Failure) { f.Err = resilience.NonRetryable(f.Err) }, giveUp},
		"no retries":               {resilience.Deferred(resilience.Policy{Name: "x", Retry: resilience.Retry{Max: resilience.None}}), func(*Failure) {}, giveUp},
		"at once":                  {resilience.Deferred(resilience.Policy{Name: "x", Retry: resilience.Retry{Delay: resilience.None}}), func(*Failure) {}, Delay{}},
		"the defaults, inline":     {resilience.Inline(resilience.Policy{Name: "x", Retry: resilience.Retry{Max: 3}}), func(f *Failure) { f.Inline = 2 }, RetryInline{2 * time.Second}},
		"the defaults are three":   {resilience.Inline(resilience.Policy{Name: "x", Retry: resilience.Retry{Max: 3}}), func(f *Failure) { f.Inline = 3 }, giveUp},
	} {
		f := failed(1, 0)
		test.change(&f)
		if got := retrying(test.use).Decide(f); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// fault is an error with a class.
type fault struct{ class string }

func (f fault) Error() string      { return f.class }
func (f fault) FaultClass() string { return f.class }

func TestTheErrorQueueOfARuleWithAPolicyIsItsOwn(t *testing.T) {
	c := Config{Rules: []Rule{{Retry: resilience.Deferred(mail), ErrorQueue: "mails"}}}
	if got := c.Decide(failed(1, 4)); got != (MoveToError{Queue: "mails"}) {
		t.Errorf("got %v", got)
	}
}

func TestANamedPolicyIsBeforeThatOfARule(t *testing.T) {
	c := Config{Policies: resilience.MustCatalog(mail), Rules: []Rule{{Errors: []Matcher{Is(errOther)}, Action: Discard{}}, {Immediate: 1}}}
	f := failed(1, 0)
	f.Headers.Set(header.HoldfastPolicy, "mail")
	f.Config = c
	if got := f.Decide(); got != (Delay{10 * time.Second}) {
		t.Errorf("got %v", got)
	}
	if got := f.Allowed(); got != (Retries{Delayed: 4}) {
		t.Errorf("allowed are %+v", got)
	}
	if got := f.Resilience(); got != resilience.Deferred(mail) {
		t.Errorf("the policy is %+v", got)
	}
	f.Err = errOther
	if got := f.Decide(); got != (Discard{}) {
		t.Errorf("with an action: %v", got)
	}
	f = failed(1, 0)
	f.Headers.Set(header.HoldfastPolicy, "nail")
	if got := c.Decide(f); got != (Retry{}) {
		t.Errorf("an unknown name: %v, want the retry of the rule", got)
	}
}

var errOther = errors.New("another")

// 10,000 policies: a delay is within [d·(1-Jitter), d] and never above the bound, and is the same
// for the same failure.
func TestDelaysOfAPolicyAreThoseOfDelayFor(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for range 10_000 {
		p := resilience.Policy{Name: "p", Retry: resilience.Retry{
			Max: 1 + r.IntN(20), Delay: time.Duration(1 + r.Int64N(int64(time.Hour))), Backoff: resilience.Backoff(r.IntN(4)), Jitter: float64(r.IntN(3)) / 2,
		}}
		if r.IntN(2) == 0 {
			p.Retry.MaxDelay = p.Retry.Delay + time.Duration(r.Int64N(int64(time.Hour)))
		}
		f := failed(1, r.IntN(p.Retry.Max))
		f.MessageID = fmt.Sprint(r.Uint64())
		got := retrying(resilience.Deferred(p)).Decide(f)
		whole := p
		whole.Retry.Jitter = resilience.None
		d := whole.DelayFor(f.Delayed+1, nil)
		after := got.(Delay).For
		if after > d || float64(after) < float64(d)*(1-p.Retry.Jitter)-1 || p.Retry.MaxDelay > 0 && after > p.Retry.MaxDelay {
			t.Fatalf("%+v after %d failures: %v of %v", p, f.Delayed+1, after, d)
		}
		if again := retrying(resilience.Deferred(p)).Decide(f); again != got {
			t.Fatalf("%v, and then %v", got, again)
		}
	}
}

func TestPoliciesThatCannotBeUsedAreRefused(t *testing.T) {
	other := mail
	other.Retry.Max = 9
	timed := mail
	timed.Timeout = time.Second
	limit := resilience.Policy{Name: "limit", Timeout: time.Second}
	mailAtOnce := resilience.Policy{Name: "at once", Retry: resilience.Retry{Delay: resilience.None}}
	retry := func(r resilience.Retry) resilience.Policy { return resilience.Policy{Name: "p", Retry: r} }
	for name, test := range map[string]struct {
		config Config
		want   string // "" is allowed
	}{
		"a policy":                {retrying(resilience.Deferred(mail)), ""},
		"beside Immediate":        {Config{Rules: []Rule{{Retry: resilience.Inline(mail), Immediate: 1}}}, "Retry is set beside Immediate, Delayed or Delays"},
		"beside Delayed":          {Config{Rules: []Rule{{Retry: resilience.Inline(mail), Delayed: None}}}, "Retry is set beside Immediate, Delayed or Delays"},
		"beside Delays":           {Config{Rules: []Rule{{Retry: resilience.Inline(mail), Delays: Delays{Jitter: 1}}}}, "Retry is set beside Immediate, Delayed or Delays"},
		"beside an Action":        {Config{Rules: []Rule{{Retry: resilience.Inline(mail), Action: Discard{}}}}, "Retry is set beside Action"},
		"beside an error queue":   {Config{Rules: []Rule{{Retry: resilience.Inline(mail), ErrorQueue: "mails"}}}, ""},
		"a time-out and Errors":   {Config{Rules: []Rule{{Retry: resilience.Inline(timed), Errors: []Matcher{Is(errOther)}}}}, "set it in a rule without Errors"},
		"Errors alone":            {Config{Rules: []Rule{{Retry: resilience.Inline(mail), Errors: []Matcher{Is(errOther)}}}}, ""},
		"no mode":                 {retrying(resilience.Use{Policy: mail}), "use resilience.Inline or resilience.Deferred"},
		"another mode":            {retrying(resilience.Use{Policy: mail, Mode: 7}), "use resilience.Inline or resilience.Deferred"},
		"no name":                 {retrying(resilience.Inline(resilience.Policy{})), "the name is empty"},
		"a negative number":       {retrying(resilience.Deferred(retry(resilience.Retry{Max: -2}))), "Retry.Max is -2"},
		"no retries":              {retrying(resilience.Deferred(retry(resilience.Retry{Max: None}))), ""},
		"neither half":            {retrying(resilience.Deferred(retry(resilience.Retry{}))), "Retry and Timeout are both zero"},
		"a Timeout alone":         {Config{Rules: []Rule{{Retry: resilience.Inline(limit), Immediate: 1, Delays: Delays{Jitter: 1}}}}, ""},
		"a Timeout, an Action":    {Config{Rules: []Rule{{Retry: resilience.Inline(limit), Action: Discard{}}}}, "Retry is set beside Action"},
		"a Timeout and Errors":    {Config{Rules: []Rule{{Retry: resilience.Inline(limit), Errors: []Matcher{Is(errOther)}}}}, "set it in a rule without Errors"},
		"no delay":                {retrying(resilience.Inline(retry(resilience.Retry{Delay: None}))), ""},
		"a day and more":          {retrying(resilience.Deferred(retry(resilience.Retry{Delay: 25 * time.Hour}))), "Retry.Delay is 25h0m0s"},
		"a bound below the delay": {retrying(resilience.Deferred(retry(resilience.Retry{Delay: time.Minute, MaxDelay: time.Second}))), "Retry.MaxDelay is 1s"},
		"many retries":            {retrying(resilience.Inline(retry(resilience.Retry{Max: 10_001, Delay: None}))), "a message has at most 10000 retries"},
		"30 days":                 {retrying(resilience.Deferred(retry(resilience.Retry{Max: 30, Delay: 24 * time.Hour}))), ""},
		"31 days":                 {retrying(resilience.Deferred(retry(resilience.Retry{Max: 31, Delay: 24 * time.Hour}))), "its delays add up to 744h0m0s: the most is 720h0m0s"},
		"overflow": {
			retrying(resilience.Deferred(retry(resilience.Retry{Max: 10_000, Delay: time.Hour, Backoff: resilience.Exponential}))),
			"its delays add up to 2562047h47m16.854775807s",
		},
		"an hour inline":        {retrying(resilience.Inline(retry(resilience.Retry{Max: 61, Delay: time.Minute}))), "inline the most is 1h0m0s: use resilience.Deferred"},
		"a rule with the same":  {Config{Policies: resilience.MustCatalog(mail), Rules: []Rule{{Retry: resilience.Inline(mail)}, {Retry: resilience.Deferred(mail)}}}, ""},
		"a rule with another":   {Config{Policies: resilience.MustCatalog(mail), Rules: []Rule{{Retry: resilience.Inline(other)}}}, `rule 1: there is another policy "mail"`},
		"rules with two":        {Config{Rules: []Rule{{Retry: resilience.Inline(mail)}, {Retry: resilience.Inline(other)}}}, `rule 2: there is another policy "mail"`},
		"a bad one among them":  {retrying(resilience.Deferred(resilience.Policy{Name: "x\n"})), "control character"},
		"a name of a megabyte":  {retrying(resilience.Deferred(resilience.Policy{Name: strings.Repeat("x", 1<<20)})), "the name has 1048576 bytes"},
		"defaults spelled out":  {Config{Policies: resilience.MustCatalog(mailAtOnce), Rules: []Rule{{Retry: resilience.Inline(mailAtOnce.WithDefaults())}}}, ""},
		"31 days, named":        {Config{Policies: resilience.MustCatalog(retry(resilience.Retry{Max: 31, Delay: 24 * time.Hour}))}, "its delays add up to"},
		"tiny delays and a lot": {retrying(resilience.Deferred(retry(resilience.Retry{Max: 10_000, Delay: 1, Backoff: resilience.Linear}))), ""},
	} {
		err := test.config.Validate()
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v, want %s", name, err, test.want)
		case err != nil && len(err.Error()) > 1000:
			t.Errorf("%s: the error has %d bytes", name, len(err.Error()))
		}
	}
}

func TestTheLongestDelayIncludesThoseOfDeferredPolicies(t *testing.T) {
	hourly := resilience.Policy{Name: "h", Retry: resilience.Retry{Delay: time.Hour}}
	for name, test := range map[string]struct {
		config Config
		want   time.Duration
	}{
		"deferred":        {retrying(resilience.Deferred(hourly)), time.Hour},
		"named":           {Config{Policies: resilience.MustCatalog(hourly)}, time.Hour},
		"inline":          {retrying(resilience.Inline(hourly)), 30 * time.Second},
		"none of its own": {Config{Delayed: None, Rules: []Rule{{Retry: resilience.Deferred(mail)}}}, time.Minute},
	} {
		if got := test.config.LongestDelay(); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// A policy with a Timeout alone limits each attempt. The retries are those of the rule, of the
// Config, or of another policy.
func TestATimeoutAloneLeavesTheRetries(t *testing.T) {
	limit := resilience.Policy{Name: "limit", Timeout: time.Second}
	giveUp := MoveToError{Queue: DefaultErrorQueue}
	for name, test := range map[string]struct {
		rule      Rule
		names     string
		immediate int
		delayed   int
		want      Action
		limit     string
	}{
		"a rule":                {Rule{Retry: resilience.Inline(limit)}, "", 1, 0, Retry{}, "limit"},
		"deferred":              {Rule{Retry: resilience.Deferred(limit)}, "", 5, 0, Retry{}, "limit"},
		"then delayed":          {Rule{Retry: resilience.Inline(limit)}, "", 6, 0, Delay{10 * time.Second}, "limit"},
		"then the error queue":  {Rule{Retry: resilience.Inline(limit)}, "", 6, 3, giveUp, "limit"},
		"beyond the maximum":    {Rule{Retry: resilience.Inline(limit)}, "", 6, 9, giveUp, "limit"},
		"numbers of the rule":   {Rule{Retry: resilience.Inline(limit), Immediate: 1}, "", 2, 0, Delay{10 * time.Second}, "limit"},
		"named":                 {Rule{}, "limit", 1, 0, Retry{}, "limit"},
		"named, a rule retries": {Rule{Retry: resilience.Deferred(mail)}, "limit", 1, 0, Delay{10 * time.Second}, "limit"},
		"the rule limits":       {Rule{Retry: resilience.Deferred(limit)}, "mail", 1, 0, Delay{10 * time.Second}, "limit"},
		"no policy":             {Rule{}, "", 1, 0, Retry{}, ""},
	} {
		f := failed(test.immediate, test.delayed)
		f.Config = Config{Rules: []Rule{test.rule}, Policies: resilience.MustCatalog(limit, mail)}
		if test.names != "" {
			f.Headers.Set(header.HoldfastPolicy, test.names)
		}
		if err := f.Config.Validate(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := f.Decide(); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
		if p, ok := f.Config.LimitOf("", f.Headers); p.Name != test.limit || ok != (test.limit != "") {
			t.Errorf("%s: the limit is that of %q, want %q", name, p.Name, test.limit)
		}
	}
}

// A runner and the messages of an endpoint have one catalog: a rule with another policy of the same
// name is refused.
func TestARunnerAndMessagesHaveOneCatalog(t *testing.T) {
	other := mail
	other.Retry.Max = 1
	policies := resilience.MustCatalog(mail)
	runner := resilience.NewRunner(policies)
	c := Config{Policies: policies, Rules: []Rule{{Retry: resilience.Inline(other)}}}
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), `another policy "mail"`) {
		t.Errorf("two values of one name: %v", err)
	}
	c.Rules = nil
	if p, ok := c.NamedPolicy("mail"); !ok || p != mail.WithDefaults() {
		t.Errorf("the policy of messages is %+v", p)
	}
	if err := runner.Run(t.Context(), "mail", func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
}
