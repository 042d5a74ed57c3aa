// A line a text: English | 繁體中文 | 简体中文 | 日本語 | Deutsch. What has no line is shown in English.
const lines = `
API key|API 金鑰|API 密钥|API キー|API-Schlüssel
All chats as JSON|所有對話存成 JSON|所有对话存为 JSON|すべてのチャットを JSON で保存|Alle Chats als JSON
Ask anything|想問什麼都可以|想问什么都可以|何でも聞いてください|Stell eine Frage
Attach text files|附加文字檔|附加文本文件|テキストファイルを添付|Textdateien anhängen
Attachments|附件|附件|添付|Anhänge
Can't reach the server, retrying in {0} s|無法連線到伺服器，{0} 秒後重試|无法连接服务器，{0} 秒后重试|サーバーに接続できません。{0} 秒後に再試行します|Server nicht erreichbar, neuer Versuch in {0} s
Can't reach the server.|無法連線到伺服器。|无法连接服务器。|サーバーに接続できません。|Server nicht erreichbar.
Cancel|取消|取消|キャンセル|Abbrechen
Chat|對話|对话|チャット|Chat
Close|關閉|关闭|閉じる|Schließen
Close a panel, or stop the answer|關閉面板，或停止回答|关闭面板，或停止回答|パネルを閉じる、または回答を止める|Leiste schließen oder Antwort anhalten
Commands and chats|指令與對話|命令与对话|コマンドとチャット|Befehle und Chats
Connect|連線|连接|接続|Verbinden
Connecting…|連線中…|连接中…|接続中…|Verbinden…
Context: {0} of {1} tokens|上下文：{0} / {1} 個 token|上下文：{0} / {1} 个 token|コンテキスト: {0} / {1} トークン|Kontext: {0} von {1} Token
Continue|繼續|继续|続ける|Fortsetzen
Continue exactly where you stopped.|請從中斷處接著寫。|请从中断处接着写。|中断したところから続けてください。|Mach genau dort weiter, wo du aufgehört hast.
Conversation deleted.|已刪除對話。|已删除对话。|チャットを削除しました。|Chat gelöscht.
Conversations|對話|对话|チャット|Chats
Conversations stay in this browser.|對話只存在這個瀏覽器裡。|对话只保存在此浏览器中。|会話はこのブラウザーにのみ保存されます。|Chats bleiben in diesem Browser.
Conversations stay in this browser; the server keeps none.|對話只存在這個瀏覽器裡，伺服器不保留。|对话只保存在此浏览器中，服务器不保留。|会話はこのブラウザーにのみ保存され、サーバーには残りません。|Chats bleiben in diesem Browser; der Server behält keine.
Copied|已複製|已复制|コピーしました|Kopiert
Copy|複製|复制|コピー|Kopieren
Copy as Markdown|複製為 Markdown|复制为 Markdown|Markdown でコピー|Als Markdown kopieren
Delete conversation|刪除對話|删除对话|チャットを削除|Chat löschen
Delete preset|刪除預設組合|删除预设|プリセットを削除|Vorlage löschen
Edit|編輯|编辑|編集|Bearbeiten
Edit message|編輯訊息|编辑消息|メッセージを編集|Nachricht bearbeiten
Enter a valid API key above, then retry.|請在上方輸入有效的 API 金鑰，再重試。|请在上方输入有效的 API 密钥，再重试。|上に有効な API キーを入力して再試行してください。|Gib oben einen gültigen API-Schlüssel ein und versuche es erneut.
From cache|來自快取|来自缓存|キャッシュから|Aus dem Cache
Generated tokens|生成的 token|生成的 token|生成トークン数|Erzeugte Token
Generation|生成|生成|生成|Erzeugung
Go to the message field|移到訊息欄|转到消息框|入力欄へ移動|Zum Eingabefeld
Import|匯入|导入|インポート|Importieren
Import and export|匯入與匯出|导入与导出|インポートとエクスポート|Import und Export
Imported chats: {0}|已匯入對話：{0}|已导入对话：{0}|インポートしたチャット: {0}|Importierte Chats: {0}
In an empty field: edit the last message|欄位空白時：編輯上一則訊息|输入框为空时：编辑上一条消息|空の入力欄で: 直前のメッセージを編集|Im leeren Feld: letzte Nachricht bearbeiten
KV cache|KV 快取|KV 缓存|KV キャッシュ|KV-Cache
Keyboard shortcuts|鍵盤快速鍵|键盘快捷键|キーボードショートカット|Tastenkürzel
Language|語言|语言|言語|Sprache
Last answer|上一則回答|上一条回答|直前の回答|Letzte Antwort
Licenses|授權條款|许可证|ライセンス|Lizenzen
Live metrics|即時數據|实时指标|ライブ指標|Live-Werte
Max tokens|最多 token 數|最大 token 数|最大トークン数|Max. Token
Message|訊息|消息|メッセージ|Nachricht
Model|模型|模型|モデル|Modell
Name|名稱|名称|名前|Name
New chat|新對話|新对话|新しいチャット|Neuer Chat
New line|換行|换行|改行|Neue Zeile
Next version|下一個版本|下一个版本|次のバージョン|Nächste Fassung
No chat has this in its title.|沒有標題符合的對話。|没有标题匹配的对话。|タイトルに一致するチャットはありません。|Kein Chat hat das im Titel.
No drafts yet.|還沒有草稿。|还没有草稿。|ドラフトはまだありません。|Noch keine Entwürfe.
None|無|无|なし|Keine
Not imported: {0}|未匯入：{0}|未导入：{0}|インポートできません: {0}|Nicht importiert: {0}
Notices|通知|通知|お知らせ|Hinweise
Pasted text|貼上的文字|粘贴的文本|貼り付けたテキスト|Eingefügter Text
Power|功率|功率|電力|Leistung
Preset|預設組合|预设|プリセット|Vorlage
Previous 7 days|過去 7 天|过去 7 天|過去 7 日間|Letzte 7 Tage
Previous version|上一個版本|上一个版本|前のバージョン|Vorige Fassung
Print|列印|打印|印刷|Drucken
Prompt|提示|提示|プロンプト|Prompt
Prompt cache hits|提示快取命中率|提示缓存命中率|プロンプトキャッシュのヒット率|Treffer im Prompt-Cache
Prompt processing|讀取提示|读取提示|プロンプト処理|Prompt-Verarbeitung
Prompt tokens read|讀取的提示 token|读取的提示 token|読み取ったプロンプトトークン|Gelesene Prompt-Token
Queued|排隊中|排队中|待機中|Wartend
Ready|就緒|就绪|準備完了|Bereit
Receipt|明細|明细|明細|Beleg
Regenerate|重新生成|重新生成|再生成|Neu erzeugen
Remove message|移除訊息|移除消息|メッセージを取り除く|Nachricht entfernen
Remove {0}|移除 {0}|移除 {0}|{0} を取り除く|{0} entfernen
Rename|重新命名|重命名|名前を変更|Umbenennen
Repeat penalty|重複懲罰|重复惩罚|繰り返しペナルティ|Wiederholungsstrafe
Reset to server defaults|還原為伺服器預設值|恢复服务器默认值|サーバーの既定値に戻す|Auf Server-Vorgaben zurücksetzen
Response schema|回應結構描述|响应模式|応答スキーマ|Antwortschema
Retry|重試|重试|再試行|Erneut versuchen
Retry now|立即重試|立即重试|今すぐ再試行|Jetzt versuchen
Running|執行中|运行中|実行中|Laufend
Save|儲存|保存|保存|Speichern
Save these settings as a preset|將這些設定存成預設組合|将这些设置存为预设|この設定をプリセットとして保存|Diese Einstellungen als Vorlage speichern
Scroll to the end|捲到最後|滚动到底部|最後へスクロール|Zum Ende
Search chats|搜尋對話|搜索对话|チャットを検索|Chats suchen
Seed|隨機種子|随机种子|シード|Startwert
Send|傳送|发送|送信|Senden
Send result|傳送結果|发送结果|結果を送信|Ergebnis senden
Settings|設定|设置|設定|Einstellungen
Skip|略過|跳过|スキップ|Überspringen
Speculation|推測解碼|推测解码|投機的デコード|Spekulation
Stop|停止|停止|停止|Anhalten
System prompt|系統提示|系统提示|システムプロンプト|System-Prompt
Temperature|溫度|温度|温度|Temperatur
The answer reached the token limit.|回答已達 token 上限。|回答已达 token 上限。|回答がトークン数の上限に達しました。|Die Antwort hat die Token-Grenze erreicht.
The connection was lost before the answer was complete.|回答完成前連線中斷。|回答完成前连接中断。|回答が完了する前に接続が切れました。|Die Verbindung brach ab, bevor die Antwort fertig war.
The conversation is longer than the model's context. Shorten or remove the last message, or start a new chat.|對話超過模型的上下文長度。請縮短或移除最後一則訊息，或開始新對話。|对话超过模型的上下文长度。请缩短或移除最后一条消息，或开始新对话。|会話がモデルのコンテキストを超えています。最後のメッセージを短くするか取り除くか、新しいチャットを始めてください。|Das Gespräch ist länger als der Kontext des Modells. Kürze oder entferne die letzte Nachricht oder beginne einen neuen Chat.
The model is answering|模型回答中|模型回答中|モデルが回答しています|Das Modell antwortet
The server refused this API key. Enter another.|伺服器不接受這個 API 金鑰，請輸入另一個。|服务器不接受此 API 密钥，请输入另一个。|サーバーがこの API キーを拒否しました。別のキーを入力してください。|Der Server lehnt diesen API-Schlüssel ab. Gib einen anderen ein.
The server's default is used for empty fields. Settings stay in this browser.|空白欄位採用伺服器預設值。設定存在這個瀏覽器裡。|空白项采用服务器默认值。设置保存在此浏览器中。|空欄にはサーバーの既定値が使われます。設定はこのブラウザーに保存されます。|Für leere Felder gilt die Vorgabe des Servers. Einstellungen bleiben in diesem Browser.
Theme: as the system|外觀：跟隨系統|外观：跟随系统|テーマ: システムに合わせる|Farben: wie das System
Theme: dark|外觀：深色|外观：深色|テーマ: ダーク|Farben: dunkel
Theme: light|外觀：淺色|外观：浅色|テーマ: ライト|Farben: hell
Thinking|思考|思考|思考|Nachdenken
Thinking…|思考中…|思考中…|思考中…|Denkt nach…
This chat as JSON|此對話存成 JSON|此对话存为 JSON|このチャットを JSON で保存|Diesen Chat als JSON
This chat as Markdown|此對話存成 Markdown|此对话存为 Markdown|このチャットを Markdown で保存|Diesen Chat als Markdown
This conversation is not in this browser.|這個瀏覽器裡沒有這個對話。|此浏览器中没有这个对话。|このチャットはこのブラウザーにありません。|Dieser Chat ist nicht in diesem Browser.
This server needs an API key.|此伺服器需要 API 金鑰。|此服务器需要 API 密钥。|このサーバーには API キーが必要です。|Dieser Server braucht einen API-Schlüssel.
Thought|思考過程|思考过程|思考内容|Gedanken
Thought for {0} s|思考了 {0} 秒|思考了 {0} 秒|{0} 秒間思考|{0} s nachgedacht
Title|標題|标题|タイトル|Titel
Today|今天|今天|今日|Heute
Tool call|工具呼叫|工具调用|ツール呼び出し|Werkzeugaufruf
Tool result|工具結果|工具结果|ツールの結果|Werkzeugergebnis
Tools|工具|工具|ツール|Werkzeuge
Type a command or a chat's title|輸入指令或對話標題|输入命令或对话标题|コマンドかチャットのタイトルを入力|Befehl oder Titel eines Chats
Undo|復原|撤销|元に戻す|Rückgängig
Untitled|未命名|未命名|無題|Ohne Titel
Versions|版本|版本|バージョン|Fassungen
Waiting for the first metrics…|等待數據…|等待指标…|指標を待っています…|Warten auf die ersten Werte…
What can I help with?|我能幫什麼忙？|我能帮什么忙？|何をお手伝いしましょうか？|Womit kann ich helfen?
X-ray|透視|透视|内訳|Röntgenbild
Yesterday|昨天|昨天|昨日|Gestern
You|你|你|あなた|Du
Your message is saved. Retry when the server is back.|訊息已儲存。伺服器恢復後請重試。|消息已保存。服务器恢复后请重试。|メッセージは保存されています。サーバーが戻ったら再試行してください。|Deine Nachricht ist gespeichert. Versuche es erneut, wenn der Server wieder da ist.
answering|回答中|回答中|回答中|antwortet
browser default|瀏覽器預設|浏览器默认|ブラウザーの既定|wie der Browser
first token after {0} s|首個 token {0} 秒|首个 token {0} 秒|最初のトークンまで {0} 秒|erstes Token nach {0} s
new answer|新回答|新回答|新しい回答|neue Antwort
off|關|关|オフ|aus
on|開|开|オン|an
random|隨機|随机|ランダム|zufällig
server default|伺服器預設|服务器默认|サーバーの既定|Server-Vorgabe
stopped|已停止|已停止|停止しました|angehalten
unlimited|無上限|无上限|無制限|unbegrenzt
{0} characters|{0} 個字元|{0} 个字符|{0} 文字|{0} Zeichen
{0} tokens|{0} 個 token|{0} 个 token|{0} トークン|{0} Token
{0} tokens of context|上下文 {0} 個 token|上下文 {0} 个 token|コンテキスト {0} トークン|{0} Token Kontext
`;

export const tables: Record<string, Record<string, string>> = { "zh-Hant": {}, "zh-Hans": {}, ja: {}, de: {} };
for (const line of lines.trim().split("\n")) {
  const [english, ...said] = line.split("|");
  Object.keys(tables).forEach((name, i) => (tables[name][english] = said[i]));
}
