package brokertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// SQSFront forwards requests to an endpoint of Amazon SQS and SNS, and refuses some as the service
// does when it is throttled or the credentials lack a right. Its methods are safe for concurrent
// use.
type SQSFront struct {
	URL string // of the front, for transports

	mu     sync.Mutex // guards the fields below
	refuse func(SQSRequest) string
	seen   []SQSRequest
	random *rand.Rand // of sampling; nil without
}

// SQSRequest is a request, in the terms of AWS's rights.
type SQSRequest struct {
	Action  string // such as "sqs:SendMessage", which is that of a batch too
	Name    string // of the queue or topic; "" if the request is about none
	Refused string // the code of the refusal; "" if the request was forwarded
}

// NewSQSFront starts a front that refuses nothing. It ends with the test.
func NewSQSFront(t testing.TB, endpoint string) *SQSFront {
	t.Helper()
	to, err := url.Parse(endpoint)
	must(t, err)
	f := &SQSFront{}
	pass := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	pass.ModifyResponse = f.shuffle
	pass.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		body = f.sample(r, body)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		asked, isJSON := requestOf(r, body)
		if code := f.judge(asked); code != "" {
			refuse(w, code, isJSON)
			return
		}
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	f.URL = server.URL
	return f
}

// Sample makes the front answer as SQS does, which asks some of its servers: with fewer messages
// than there are, in a random order. It has no effect on the order of two answers.
func (f *SQSFront) Sample(seed uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.random = rand.New(rand.NewPCG(seed, seed)) //nolint:gosec // a test
}

const receiveTarget = "AmazonSQS.ReceiveMessage"

// sample lowers the number of messages in a request to receive.
func (f *SQSFront) sample(r *http.Request, body []byte) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	var in map[string]any
	if f.random == nil || r.Header.Get("X-Amz-Target") != receiveTarget || json.Unmarshal(body, &in) != nil {
		return body
	}
	most, ok := in["MaxNumberOfMessages"].(float64)
	if !ok {
		return body
	}
	in["MaxNumberOfMessages"] = 1 + f.random.IntN(max(1, int(most)))
	if fewer, err := json.Marshal(in); err == nil {
		return fewer
	}
	return body
}

// shuffle changes the order of the messages in an answer.
func (f *SQSFront) shuffle(r *http.Response) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.random == nil || r.Request.Header.Get("X-Amz-Target") != receiveTarget || r.StatusCode != http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	var out map[string]json.RawMessage
	var messages []json.RawMessage
	if json.Unmarshal(body, &out) == nil && json.Unmarshal(out["Messages"], &messages) == nil {
		f.random.Shuffle(len(messages), func(i, j int) { messages[i], messages[j] = messages[j], messages[i] })
		if out["Messages"], err = json.Marshal(messages); err == nil {
			body, err = json.Marshal(out)
		}
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.Header.Set("Content-Length", strconv.Itoa(len(body)))
	return err
}

// Refuse sets the refusals from now on: by returns the code of the refusal of a request, or "". nil
// refuses nothing. Several goroutines call by at once.
func (f *SQSFront) Refuse(by func(SQSRequest) string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = by
}

// Seen returns the requests so far, the refused ones included.
func (f *SQSFront) Seen() []SQSRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.seen)
}

func (f *SQSFront) judge(r SQSRequest) string {
	f.mu.Lock()
	by := f.refuse
	f.mu.Unlock()
	if by != nil {
		r.Refused = by(r)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, r)
	return r.Refused
}

// requestOf reads a request of SQS's JSON protocol, or of the query protocol of SNS and STS.
func requestOf(r *http.Request, body []byte) (asked SQSRequest, isJSON bool) {
	var name string
	if target := r.Header.Get("X-Amz-Target"); target != "" {
		var in struct{ QueueUrl, QueueName string } //nolint:revive,staticcheck // the names are of the protocol
		if json.Unmarshal(body, &in) == nil {
			name = in.QueueName + in.QueueUrl[strings.LastIndexByte(in.QueueUrl, '/')+1:]
		}
		return SQSRequest{Action: "sqs:" + singly(target[strings.LastIndexByte(target, '.')+1:]), Name: name}, true
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return SQSRequest{}, false
	}
	service := "sns:"
	if form.Get("Action") == "GetCallerIdentity" {
		service = "sts:"
	}
	name = form.Get("Name") + form.Get("TopicArn")
	return SQSRequest{Action: service + singly(form.Get("Action")), Name: name[strings.LastIndexByte(name, ':')+1:]}, false
}

// singly returns the action whose right a batch needs.
func singly(operation string) string { return strings.TrimSuffix(operation, "Batch") }

// refuse answers with a status of AWS: that of a throttle or a denial is a client's error.
func refuse(w http.ResponseWriter, code string, isJSON bool) {
	if isJSON {
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"__type":"com.amazonaws.sqs#%s","message":"refused by the test"}`, code)
		return
	}
	w.Header().Set("Content-Type", "text/xml")
	w.WriteHeader(http.StatusForbidden)
	fmt.Fprintf(w, `<ErrorResponse><Error><Type>Sender</Type><Code>%s</Code><Message>refused by the test</Message></Error></ErrorResponse>`, code)
}

// SQSRights returns a function for [SQSFront.Refuse] that denies every request that a policy in
// IAM's language does not allow. It reads the statements' Action and Resource, which may have
// stars. Names begin with prefix, which the policy does not have.
func SQSRights(t testing.TB, policy, prefix string) func(SQSRequest) string {
	t.Helper()
	var read struct {
		Statement []struct {
			Effect           string
			Action, Resource texts
		}
	}
	must(t, json.Unmarshal([]byte(policy), &read))
	return func(r SQSRequest) string {
		for _, s := range read.Statement {
			allows := s.Effect == "Allow" && slices.ContainsFunc(s.Action, func(a string) bool { return matches(a, r.Action) })
			for _, resource := range s.Resource {
				name := resource[strings.LastIndexByte(resource, ':')+1:]
				if allows && matches(name, strings.TrimPrefix(r.Name, prefix)) {
					return ""
				}
			}
		}
		if strings.HasPrefix(r.Action, "sts:") {
			return "" // needs no right
		}
		if strings.HasPrefix(r.Action, "sns:") {
			return "AuthorizationError"
		}
		return "AccessDenied"
	}
}

// texts is one text or several.
type texts []string

func (x *texts) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*x = texts{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(x))
}

// matches reports whether name is the pattern, which may end with a star.
func matches(pattern, name string) bool {
	if begin, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, begin)
	}
	return pattern == name
}
