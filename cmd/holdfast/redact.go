package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"regexp"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"
	"go.uber.org/zap/zapcore"
)

const (
	// hidden stands in the place of a password.
	hidden = "xxxxx"
	// example is the user and password of the URLs in help texts.
	example = "user:pw"
)

var (
	letters       = regexp.MustCompile(`^[A-Za-z]+$`)
	userinfo      = regexp.MustCompile(`//[^\s"]*@`)
	queryPassword = regexp.MustCompile(`(?i)((?:password|pwd|sharedaccesskey|sharedaccesssignature)=)[^&;\s"]*`)
)

// redact hides the password of the URL rawURL in a text, and whatever stands in the place of a
// password there.
//
// A password of letters alone, such as "postgres", may be a word of the text: it is hidden in its
// place only, as the password of a URL or behind the word "password". Any other one is hidden
// wherever it occurs.
func redact(text, rawURL string) string {
	if place, ok := hide(rawURL); ok {
		text = strings.ReplaceAll(text, rawURL, place)
	}
	for _, secret := range secrets(rawURL) {
		if letters.MatchString(secret) {
			named := regexp.MustCompile(`(?i)(password\W{1,3})` + regexp.QuoteMeta(secret) + `\b`)
			text = named.ReplaceAllString(text, "${1}"+hidden)
		} else {
			text = strings.ReplaceAll(text, secret, hidden)
		}
	}
	text = userinfo.ReplaceAllStringFunc(text, func(s string) string {
		user, password, withPassword := strings.Cut(s[len("//"):len(s)-1], ":")
		if !withPassword || user+":"+password == example {
			return s
		}
		return "//" + user + ":" + hidden + "@"
	})
	return queryPassword.ReplaceAllString(text, "${1}"+hidden)
}

// hide returns the URL with its password hidden. It reports false for a URL without one.
func hide(rawURL string) (string, bool) {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok {
		return "", false
	}
	end := len(rest)
	if i := strings.IndexAny(rest, "/?"); i >= 0 && strings.LastIndexByte(rest[:i], '@') >= 0 {
		end = i
	}
	at := strings.LastIndexByte(rest[:end], '@')
	if at < 0 {
		return "", false
	}
	user, _, ok := strings.Cut(rest[:at], ":")
	return scheme + "://" + user + ":" + hidden + rest[at:], ok
}

// secrets are the password of a URL as it is written there and as it is meant.
func secrets(rawURL string) []string {
	var found []string
	add := func(s string) {
		const short = 4 // shorter ones would take words apart that have nothing to do with them
		if len(s) >= short {
			found = append(found, s)
		}
	}
	for part := range strings.SplitSeq(rawURL, ";") { // of a connection string of Azure Service Bus
		if name, value, _ := strings.Cut(part, "="); strings.EqualFold(name, "SharedAccessKey") || strings.EqualFold(name, "SharedAccessSignature") {
			add(value)
		}
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return found
	}
	if password, ok := u.User.Password(); ok {
		add(password)
		add(url.UserPassword("", password).String()[1:])
	}
	add(u.Query().Get("password"))
	return found
}

// logOff is the level that silences the log.
const logOff = "off"

// newLogger makes a logger that writes to w through zap. An empty level is warn.
func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var encoder zapcore.Encoder
	switch format {
	case "console":
		c := zap.NewDevelopmentEncoderConfig()
		c.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		encoder = zapcore.NewConsoleEncoder(c)
	case "json":
		c := zap.NewProductionEncoderConfig()
		c.EncodeTime = zapcore.RFC3339NanoTimeEncoder
		encoder = zapcore.NewJSONEncoder(c)
	default:
		return nil, fmt.Errorf("--log-format %q: want console or json", format)
	}
	l := zapcore.WarnLevel
	switch level {
	case "":
	case logOff:
		return slog.New(slog.DiscardHandler), nil
	case "debug", "info", "warn", "error":
		l, _ = zapcore.ParseLevel(level)
	default:
		return nil, usagef("--log-level %q: want debug, info, warn, error or off", level)
	}
	core := zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), l)
	never := zapslog.AddStacktraceAt(slog.Level(1 << 10)) // panics carry their own
	return slog.New(zapslog.NewHandler(core, never)), nil
}
