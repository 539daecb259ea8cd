package brokertest_test

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

func TestTheStandInForSQSIsSharedByTheTestsOfAProcess(t *testing.T) {
	endpoint := brokertest.SQS(t)
	createQueue(t, endpoint, "shared")
	if again := brokertest.SQS(t); again != endpoint {
		t.Errorf("the second test gets %s, the first had %s", again, endpoint)
	}
	if answer := ask(t, endpoint, "ListQueues", `{"QueueNamePrefix":"shared"}`); !strings.Contains(answer, "/shared") {
		t.Errorf("the queue is not there: %s", answer)
	}
}

func TestOwnSQSKeepsQueuesOverRestarts(t *testing.T) {
	node := brokertest.OwnSQS(t)
	createQueue(t, node.URL, "kept")
	for _, how := range []os.Signal{os.Interrupt, os.Kill} {
		node.Restart(how)
		if answer := ask(t, node.URL, "ListQueues", `{"QueueNamePrefix":"kept"}`); !strings.Contains(answer, "/kept") {
			t.Errorf("%v: the queue is gone: %s", how, answer)
		}
	}
}

func createQueue(t *testing.T, endpoint, name string) {
	t.Helper()
	if answer := ask(t, endpoint, "CreateQueue", `{"QueueName":"`+name+`"}`); !strings.Contains(answer, "/"+name) {
		t.Fatalf("no queue: %s", answer)
	}
}

// ask calls an operation of SQS without its SDK.
func ask(t *testing.T, endpoint, operation, body string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, endpoint, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-amz-json-1.0")
	r.Header.Set("X-Amz-Target", "AmazonSQS."+operation)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
