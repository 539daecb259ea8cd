package sqs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	testQueueARN = "arn:aws:sqs:eu-central-1:123456789012:billing"
	testTopics   = "arn:aws:sns:eu-central-1:123456789012:"
)

func testPolicy(t *testing.T, text string) *policy {
	t.Helper()
	p, err := parsePolicy(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAPolicyLetsInTheTopicsThatWereAdded(t *testing.T) {
	p := testPolicy(t, "")
	for _, name := range []string{"b", "a", "b"} {
		if err := p.allow(testQueueARN, testTopics+name); err != nil {
			t.Fatal(err)
		}
	}
	text, err := p.text()
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"Statement":[{"Sid":"HoldfastTopics","Effect":"Allow","Principal":{"Service":"sns.amazonaws.com"},` +
		`"Action":["sqs:SendMessage"],"Resource":["arn:aws:sqs:eu-central-1:123456789012:billing"],` +
		`"Condition":{"ArnLike":{"aws:SourceArn":["arn:aws:sns:eu-central-1:123456789012:a","arn:aws:sns:eu-central-1:123456789012:b"]}}}],` +
		`"Version":"2012-10-17"}`
	if diff := cmp.Diff(want, text); diff != "" {
		t.Error(diff)
	}
	again := testPolicy(t, text)
	for name, allowed := range map[string]bool{"a": true, "b": true, "c": false, "ab": false} {
		if got := again.allows(testQueueARN, testTopics+name); got != allowed {
			t.Errorf("topic %s is let in: %v, want %v", name, got, allowed)
		}
	}
	if again.allows(testQueueARN+"2", testTopics+"a") {
		t.Error("a policy of one queue is taken for another's")
	}
}

func TestAWidePolicyTakesThePlaceOfSingleTopics(t *testing.T) {
	p := testPolicy(t, "")
	for _, name := range []string{"shop-a", "shop-b", "other", "shop-*"} {
		if err := p.allow(testQueueARN, testTopics+name); err != nil {
			t.Fatal(err)
		}
	}
	text, err := p.text()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, "shop-a") || !strings.Contains(text, "other") {
		t.Errorf("the policy names topics that it lets in anyway, or has lost one: %s", text)
	}
	if !p.allows(testQueueARN, testTopics+"shop-*") || !p.allows(testQueueARN, testTopics+"shop-z") || p.allows(testQueueARN, testTopics+"*") {
		t.Errorf("wrong topics are let in by %s", text)
	}
}

// What others have written into a policy is understood where it lets SNS in, and stays as it is in
// any case.
func TestStatementsOfOthers(t *testing.T) {
	const (
		resource = `"Resource":"` + testQueueARN + `"`
		source   = `"Condition":{"ArnLike":{"aws:SourceArn":"` + testTopics + `shop-*"}}`
	)
	for _, test := range []struct {
		what, statement string
		allows          bool
	}{
		{"as NServiceBus writes it", `{"Effect":"Allow","Principal":{"AWS":"*"},"Action":"SQS:SendMessage",` + resource + `,` + source + `}`, true},
		{"for the service", `{"Effect":"Allow","Principal":{"Service":["sns.amazonaws.com"]},"Action":["sqs:*"],` + resource + `,` + source + `}`, true},
		{"for everybody", `{"Effect":"Allow","Principal":"*","Action":"*","Resource":"*"}`, true},
		{"that denies", `{"Effect":"Deny","Principal":"*","Action":"sqs:SendMessage",` + resource + `}`, false},
		{"for an account", `{"Effect":"Allow","Principal":{"AWS":"arn:aws:iam::1:root"},"Action":"sqs:SendMessage",` + resource + `}`, false},
		{"for receiving", `{"Effect":"Allow","Principal":"*","Action":"sqs:ReceiveMessage",` + resource + `}`, false},
		{"on a further condition", `{"Effect":"Allow","Principal":"*","Action":"sqs:SendMessage",` + resource +
			`,"Condition":{"ArnLike":{"aws:SourceArn":"` + testTopics + `shop-*"},"Bool":{"aws:SecureTransport":"true"}}}`, false},
		{"for other topics", `{"Effect":"Allow","Principal":"*","Action":"sqs:SendMessage",` + resource +
			`,"Condition":{"ArnEquals":{"aws:SourceArn":["` + testTopics + `other"]}}}`, false},
		{"for others than some", `{"Effect":"Allow","NotPrincipal":{"AWS":"1"},"Principal":"*","Action":"sqs:SendMessage",` + resource + `}`, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			for _, list := range []string{"[" + test.statement + "]", test.statement} {
				p := testPolicy(t, `{"Version":"2008-10-17","Id":"x","Statement":`+list+`}`)
				if got := p.allows(testQueueARN, testTopics+"shop-a"); got != test.allows {
					t.Errorf("it lets the topic in: %v, want %v", got, test.allows)
				}
				if err := p.allow(testQueueARN, testTopics+"mine"); err != nil {
					t.Fatal(err)
				}
				text, err := p.text()
				if err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(text, test.statement) || !strings.Contains(text, `"Id":"x"`) || !strings.Contains(text, "2008-10-17") {
					t.Errorf("it does not stay as it is: %s", text)
				}
			}
		})
	}
}

func TestAPolicyThatSQSWouldNotTakeIsRefusedWithItsSize(t *testing.T) {
	p := testPolicy(t, "")
	var fits int
	for ; ; fits++ {
		if err := p.allow(testQueueARN, fmt.Sprintf("%sShop-Messages-Events-OrderPlaced-%d", testTopics, fits)); err != nil {
			t.Fatal(err)
		}
		if _, err := p.text(); err != nil {
			if !strings.Contains(err.Error(), "bytes, and SQS takes 8192") || !strings.Contains(err.Error(), "WidePolicy") {
				t.Errorf("the error gives no advice: %v", err)
			}
			break
		}
	}
	if fits < 80 {
		t.Errorf("only %d topics fit", fits)
	}
	p = testPolicy(t, "")
	for i := range maxStatements + 1 {
		if err := p.allow(fmt.Sprint(testQueueARN, i), testTopics+"a"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.text(); err == nil || !strings.Contains(err.Error(), "21 statements") {
		t.Errorf("21 statements: %v", err)
	}
}

func TestAPolicyThatCannotBeReadIsLeftAlone(t *testing.T) {
	for _, text := range []string{"x", "[]", `{"Statement":"x"}`, `{"Statement":[`} {
		if _, err := parsePolicy(text); err == nil {
			t.Errorf("%s is read", text)
		}
	}
}

func FuzzParsePolicy(f *testing.F) {
	f.Add(`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*","Action":"sqs:*","Resource":"*"}]}`)
	f.Add(`{"Statement":{"Effect":"Allow"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePolicy(text)
		if err != nil {
			return
		}
		p.allows(testQueueARN, testTopics+"a")
		if err := p.allow(testQueueARN, testTopics+"a"); err != nil {
			return
		}
		if !p.allows(testQueueARN, testTopics+"a") {
			t.Errorf("%q does not let in what was added", text)
		}
	})
}
