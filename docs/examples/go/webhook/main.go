// Receive webhooks, and verify each: WEBHOOK_SECRET=whsec_… PORT=9000 go run ./webhook
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

func verify(secret []byte, header http.Header, body []byte) bool {
	id, stamp := header.Get("webhook-id"), header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if age := time.Now().Unix() - seconds; err != nil || age > 300 || age < -300 {
		return false
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write(append([]byte(id+"."+stamp+"."), body...))
	wanted := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for _, each := range strings.Fields(header.Get("webhook-signature")) {
		if hmac.Equal([]byte(each), []byte(wanted)) {
			return true
		}
	}
	return false
}

func main() {
	secret, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(os.Getenv("WEBHOOK_SECRET"), "whsec_"))
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("/", func(answer http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		if err != nil || !verify(secret, request.Header, body) {
			answer.WriteHeader(http.StatusUnauthorized)
			return
		}
		var event struct{ Message struct{ Payload any } }
		if err := json.Unmarshal(body, &event); err != nil {
			answer.WriteHeader(http.StatusBadRequest)
			return
		}
		fmt.Println(event.Message.Payload)
		answer.WriteHeader(http.StatusNoContent)
	})
	port := os.Getenv("PORT")
	if port == "" {
		port = "9000"
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+port, nil))
}
