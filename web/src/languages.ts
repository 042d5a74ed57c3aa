// A line a text: English | 繁體中文 | 简体中文 | 日本語 | Deutsch. What has no line is shown in English.
const lines = `
/ in an empty message field lists these.|在空白的訊息欄輸入 / 就會列出這些。|在空白的消息框输入 / 就会列出这些。|空のメッセージ欄で / を打つと一覧が出ます。|/ im leeren Feld zeigt sie an.
0 always takes the most likely token; higher is more varied|0 一律取最可能的 token；越高越多變|0 总是取最可能的 token；越高越多变|0 は常に最有力のトークン。高いほど多様になります|0 nimmt immer das wahrscheinlichste Token; höher wird abwechslungsreicher
1 turns it off|1 表示關閉|1 表示关闭|1 でオフ|1 schaltet sie ab
A message can have up to {0} pictures and sounds.|一則訊息最多可有 {0} 個圖片與聲音。|一条消息最多可有 {0} 个图片和声音。|1 つのメッセージに付けられる画像と音声は {0} 個までです。|Eine Nachricht kann bis zu {0} Bilder und Töne haben.
Acceptance by position in the draft|依草稿位置的接受率|按草稿位置的接受率|ドラフトの位置ごとの採用率|Annahme nach Position im Entwurf
Accepted, if the ones before were|接受（前面都被接受時）|接受（前面都被接受时）|採用（前がすべて採用の場合）|Angenommen, wenn die davor es waren
Accepted, of all drafts|接受（占所有草稿）|接受（占所有草稿）|採用（全ドラフト中）|Angenommen, von allen Entwürfen
Add|加入|添加|追加|Hinzufügen
Address|位址|地址|アドレス|Adresse
All chats as JSON|所有對話存成 JSON|所有对话存为 JSON|すべてのチャットを JSON で保存|Alle Chats als JSON
Always run|一律執行|总是运行|常に実行|Immer ausführen
answering|回答中|回答中|回答中|antwortet
API key|API 金鑰|API 密钥|API キー|API-Schlüssel
Ask anything|想問什麼都可以|想问什么都可以|何でも聞いてください|Stell eine Frage
Ask first|先詢問|先询问|先に確認|Erst fragen
Attach files|附加檔案|附加文件|ファイルを添付|Dateien anhängen
Attachments|附件|附件|添付|Anhänge
browser default|瀏覽器預設|浏览器默认|ブラウザーの既定|wie der Browser
busy: {0}|忙碌：{0}|繁忙：{0}|使用中：{0}|ausgelastet: {0}
Can't reach it. It must be running and let pages of {0} in (CORS), and this server must have been started with --page-origin {1}.|無法連線。它必須正在執行、允許 {0} 的網頁（CORS），而且本伺服器須以 --page-origin {1} 啟動。|无法连接。它必须正在运行、允许 {0} 的网页（CORS），而且本服务器须以 --page-origin {1} 启动。|接続できません。起動していて {0} のページを許可し（CORS）、このサーバーが --page-origin {1} 付きで起動している必要があります。|Nicht erreichbar. Er muss laufen und Seiten von {0} zulassen (CORS), und dieser Server muss mit --page-origin {1} gestartet sein.
Can't reach the server, retrying in {0} s|無法連線到伺服器，{0} 秒後重試|无法连接服务器，{0} 秒后重试|サーバーに接続できません。{0} 秒後に再試行します|Server nicht erreichbar, neuer Versuch in {0} s
Can't reach the server.|無法連線到伺服器。|无法连接服务器。|サーバーに接続できません。|Server nicht erreichbar.
Can't reach {0}. Is it running, does its --cors-origin let this page in, and does this server's --page-origin name it?|無法連線到 {0}。它在執行嗎？它的 --cors-origin 允許本頁嗎？本伺服器的 --page-origin 有列出它嗎？|无法连接 {0}。它在运行吗？它的 --cors-origin 允许本页吗？本服务器的 --page-origin 列出了它吗？|{0} に接続できません。起動していますか。その --cors-origin はこのページを許可し、このサーバーの --page-origin に書かれていますか。|{0} ist nicht erreichbar. Läuft er, lässt sein --cors-origin diese Seite zu, und nennt ihn --page-origin dieses Servers?
Cancel|取消|取消|キャンセル|Abbrechen
Chat|對話|对话|チャット|Chat
Chat deleted.|已刪除對話。|已删除对话。|チャットを削除しました。|Chat gelöscht.
Chats|對話|对话|チャット|Chats
Chats stay in this browser.|對話只存在這個瀏覽器裡。|对话只保存在此浏览器中。|会話はこのブラウザーにのみ保存されます。|Chats bleiben in diesem Browser.
Chats stay in this browser; the server keeps none.|對話只存在這個瀏覽器裡，伺服器不保留。|对话只保存在此浏览器中，服务器不保留。|会話はこのブラウザーにのみ保存され、サーバーには残りません。|Chats bleiben in diesem Browser; der Server behält keine.
Chosen by the model after {0}: {1} of {2} drafted tokens accepted|{0} 之後由模型選出：草稿 {2} 個 token 接受 {1} 個|{0} 之后由模型选出：草稿 {2} 个 token 接受 {1} 个|{0} の後にモデルが選択：ドラフト {2} トークン中 {1} 採用|Nach {0} vom Modell gewählt: {1} von {2} Token des Entwurfs angenommen
Choose model|選擇模型|选择模型|モデルを選ぶ|Modell wählen
Close|關閉|关闭|閉じる|Schließen
Close a panel, or stop the answer|關閉面板，或停止回答|关闭面板，或停止回答|パネルを閉じる、または回答を止める|Bereich schließen oder Antwort anhalten
Code|程式碼|代码|コード|Code
Commands and chats|指令與對話|命令与对话|コマンドとチャット|Befehle und Chats
Compare|比較|比较|比較|Vergleichen
Connect|連線|连接|接続|Verbinden
Connect again|重新連線|重新连接|再接続|Neu verbinden
Connecting…|連線中…|连接中…|接続中…|Verbinden…
Context|上下文|上下文|コンテキスト|Kontext
Context: {0} of {1} tokens|上下文：{0} / {1} 個 token|上下文：{0} / {1} 个 token|コンテキスト: {0} / {1} トークン|Kontext: {0} von {1} Token
Continue|繼續|继续|続ける|Fortsetzen
Copied|已複製|已复制|コピーしました|Kopiert
Copies of requests: {0} answers the same, {1} others, {2} failed.|請求副本：{0} 個回答相同，{1} 個不同，{2} 個失敗。|请求副本：{0} 个回答相同，{1} 个不同，{2} 个失败。|リクエストの写し：{0} 件が同じ回答、{1} 件が異なり、{2} 件が失敗。|Kopien von Anfragen: {0} Antworten gleich, {1} anders, {2} fehlgeschlagen.
Copy|複製|复制|コピー|Kopieren
Copy as Markdown|複製為 Markdown|复制为 Markdown|Markdown でコピー|Als Markdown kopieren
Count from 1 to 20.|從 1 數到 20。|从 1 数到 20。|1 から 20 まで数えて。|Zähle von 1 bis 20.
Delete chat|刪除對話|删除对话|チャットを削除|Chat löschen
Delete preset|刪除預設組合|删除预设|プリセットを削除|Vorlage löschen
Draft|草稿|草稿|ドラフト|Entwurf
Drafted by {0}: position {1}, {2} of {3} accepted|{0} 起草：第 {1} 位，接受 {2}／{3}|{0} 起草：第 {1} 位，接受 {2}/{3}|{0} のドラフト：位置 {1}、{2}/{3} 採用|Entwurf von {0}: Position {1}, {2} von {3} angenommen
Drafts|草稿|草稿|ドラフト|Entwürfe
Drafts hold to their last position: longer drafts may pay off.|草稿到最後一位都成立：更長的草稿可能划算。|草稿到最后一位都成立：更长的草稿可能划算。|ドラフトは最後の位置まで当たります。もっと長くする価値があるかもしれません。|Entwürfe halten bis zur letzten Position: längere könnten sich lohnen.
Drafts hold up to position {0}: longer ones rarely pay off here.|草稿到第 {0} 位成立：更長在此很少划算。|草稿到第 {0} 位成立：更长在此很少划算。|ドラフトは位置 {0} まで当たります。ここではこれ以上長くても割に合いません。|Entwürfe halten bis Position {0}: längere lohnen hier selten.
Drop tokens below this fraction of the top probability|捨去低於最高機率此比例的 token|舍去低于最高概率此比例的 token|最高確率に対しこの比率未満のトークンを除く|Verwirft Token unter diesem Anteil der höchsten Wahrscheinlichkeit
Edit|編輯|编辑|編集|Bearbeiten
Edit message|編輯訊息|编辑消息|メッセージを編集|Nachricht bearbeiten
Empty: this server. Another one, with other drafters or KV types, must be named by --page-origin.|留空：本伺服器。其他伺服器（不同的草稿來源或 KV 型別）須以 --page-origin 指定。|留空：本服务器。其他服务器（不同的草稿来源或 KV 类型）须用 --page-origin 指定。|空欄：このサーバー。別のサーバー（別のドラフターや KV 型）は --page-origin で指定します。|Leer: dieser Server. Ein anderer, mit anderen Drafts oder KV-Typen, muss in --page-origin stehen.
Energy|能耗|能耗|エネルギー|Energie
Enter a valid API key above, then retry.|請在上方輸入有效的 API 金鑰，再重試。|请在上方输入有效的 API 密钥，再重试。|上に有効な API キーを入力して再試行してください。|Gib oben einen gültigen API-Schlüssel ein und versuche es erneut.
equally fast|一樣快|一样快|同じ速さ|gleich schnell
failed|失敗|失败|失敗|fehlgeschlagen
Few drafts are accepted here: plain decoding or another drafter may be as fast.|這裡很少草稿被接受：不用草稿或換一種可能一樣快。|这里很少草稿被接受：不用草稿或换一种可能一样快。|ここではドラフトがほとんど採用されません。ドラフトなしや別の方法でも同じ速さかもしれません。|Hier werden wenige Entwürfe angenommen: ohne oder mit anderen geht es vielleicht genauso schnell.
Files of carat gate and carat tune (--json, --records): each line opens its record.|carat gate 與 carat tune 的檔案（--json、--records）：每行可展開其紀錄。|carat gate 和 carat tune 的文件（--json、--records）：每行可展开其记录。|carat gate と carat tune のファイル（--json、--records）。各行から記録を開けます。|Dateien von carat gate und carat tune (--json, --records): jede Zeile öffnet ihren Eintrag.
first token after {0} s|首個 token {0} 秒|首个 token {0} 秒|最初のトークンまで {0} 秒|erstes Token nach {0} s
Folder (empty: none)|資料夾（留空：無）|文件夹（留空：无）|フォルダー（空欄：なし）|Ordner (leer: keiner)
From cache|來自快取|来自缓存|キャッシュから|Aus dem Cache
Gates|關卡|关卡|ゲート|Prüfungen
Generated tokens|生成的 token|生成的 token|生成トークン数|Erzeugte Token
Generation|生成|生成|生成|Erzeugung
Give me a JSON object with a name and an age.|給我一個含姓名與年齡的 JSON 物件。|给我一个含姓名和年龄的 JSON 对象。|名前と年齢を持つ JSON オブジェクトを作って。|Gib mir ein JSON-Objekt mit Name und Alter.
Go to the message field|移到訊息欄|转到消息框|入力欄へ移動|Zum Eingabefeld
Identical, {0} of {0} tokens|完全相同，{0}／{0} 個 token|完全相同，{0}/{0} 个 token|完全に同じ（{0}/{0} トークン）|Identisch, {0} von {0} Token
Import|匯入|导入|インポート|Importieren
Import and export|匯入與匯出|导入与导出|インポートとエクスポート|Import und Export
Imported chats: {0}|已匯入對話：{0}|已导入对话：{0}|インポートしたチャット: {0}|Importierte Chats: {0}
In an empty field: edit the last message|欄位空白時：編輯上一則訊息|输入框为空时：编辑上一条消息|空の入力欄で: 直前のメッセージを編集|Im leeren Feld: letzte Nachricht bearbeiten
Its own|它自己的|它自己的|そのサーバーのもの|sein eigenes
Keep the most likely tokens up to this total probability|保留總機率達此值的最可能 token|保留总概率达此值的最可能 token|合計確率がこの値になるまで有力なトークンを残す|Behält die wahrscheinlichsten Token bis zu dieser Summe
Keep this many of the most likely tokens; 0 keeps all|保留這麼多個最可能的 token；0 全部保留|保留这么多个最可能的 token；0 全部保留|有力なトークンをこの数だけ残す。0 はすべて|Behält so viele der wahrscheinlichsten Token; 0 alle
Keyboard shortcuts|鍵盤快速鍵|键盘快捷键|キーボードショートカット|Tastenkürzel
KV cache|KV 快取|KV 缓存|KV キャッシュ|KV-Cache
Language|語言|语言|言語|Sprache
Last answer|上一則回答|上一条回答|直前の回答|Letzte Antwort
Licenses|授權條款|许可证|ライセンス|Lizenzen
Live metrics|即時數據|实时指标|ライブ指標|Live-Werte
loaded|已載入|已加载|読み込み済み|geladen
loading…|載入中…|加载中…|読み込み中…|lädt…
Max tokens|最多 token 數|最大 token 数|最大トークン数|Max. Token
MCP servers|MCP 伺服器|MCP 服务器|MCP サーバー|MCP-Server
Message|訊息|消息|メッセージ|Nachricht
Model|模型|模型|モデル|Modell
model, after a draft|模型（草稿之後）|模型（草稿之后）|モデル（ドラフトの後）|Modell, nach einem Entwurf
Move to folder|移到資料夾|移到文件夹|フォルダーへ移動|In Ordner verschieben
Name|名稱|名称|名前|Name
Never|永不|从不|しない|Nie
new answer|新回答|新回答|新しい回答|neue Antwort
New chat|新對話|新对话|新しいチャット|Neuer Chat
New line|換行|换行|改行|Neue Zeile
Next version|下一個版本|下一个版本|次のバージョン|Nächste Fassung
No chats match.|找不到符合的對話。|没有匹配的对话。|一致するチャットはありません。|Kein passender Chat.
No drafts yet.|還沒有草稿。|还没有草稿。|ドラフトはまだありません。|Noch keine Entwürfe.
None|無|无|なし|Keine
not connected|未連線|未连接|未接続|nicht verbunden
Not imported: {0}|未匯入：{0}|未导入：{0}|インポートできません: {0}|Nicht importiert: {0}
not loaded|未載入|未加载|未読み込み|nicht geladen
Notices|通知|通知|お知らせ|Hinweise
off|關|关|オフ|aus
on|開|开|オン|an
Only for this chat|只用於這個對話|仅用于此对话|このチャットだけ|Nur für diesen Chat
Open records|開啟紀錄|打开记录|記録を開く|Messdaten öffnen
paler: later in the draft|顏色越淡：在草稿中越後面|颜色越淡：在草稿中越靠后|薄いほどドラフトの後ろ|blasser: später im Entwurf
passed|通過|通过|合格|bestanden
Pasted text|貼上的文字|粘贴的文本|貼り付けたテキスト|Eingefügter Text
Picture|圖片|图片|画像|Bild
pictures: {0} tokens|圖片：{0} 個 token|图片：{0} 个 token|画像: {0} トークン|Bilder: {0} Token
plain|一般|普通|通常|ohne Entwurf
Plain step|一般步驟|普通步骤|通常のステップ|Schritt ohne Entwurf
Position|位置|位置|位置|Position
Position {0}: {1}|位置 {0}：{1}|位置 {0}：{1}|位置 {0}：{1}|Position {0}: {1}
Power|功率|功率|電力|Leistung
Preset|預設組合|预设|プリセット|Vorlage
Preview|預覽|预览|プレビュー|Vorschau
Previous 7 days|過去 7 天|过去 7 天|過去 7 日間|Letzte 7 Tage
Previous version|上一個版本|上一个版本|前のバージョン|Vorige Fassung
Print|列印|打印|印刷|Drucken
Prompt|提示|提示|プロンプト|Prompt
Prompt cache hits|提示快取命中率|提示缓存命中率|プロンプトキャッシュのヒット率|Treffer im Prompt-Cache
Prompt library|提示詞庫|提示词库|プロンプト集|Prompt-Sammlung
Prompt processing|讀取提示|读取提示|プロンプト処理|Prompt-Verarbeitung
Prompt tokens read|讀取的提示 token|读取的提示 token|読み取ったプロンプトトークン|Gelesene Prompt-Token
Queued|排隊中|排队中|待機中|Wartend
random|隨機|随机|ランダム|zufällig
Raw prompt|原始提示|原始提示|生のプロンプト|Roher Prompt
Ready|就緒|就绪|準備完了|Bereit
Receipt|明細|明细|明細|Beleg
Record sound|錄音|录音|録音する|Ton aufnehmen
Recording|錄音|录音|録音|Aufnahme
Records|測量紀錄|测量记录|計測記録|Messdaten
Regenerate|重新生成|重新生成|再生成|Neu erzeugen
Regime map|設定地圖|设置地图|設定マップ|Karte der Einstellungen
Rejected: {0}|被拒：{0}|被拒：{0}|不採用：{0}|Verworfen: {0}
Remove message|移除訊息|移除消息|メッセージを取り除く|Nachricht entfernen
Remove {0}|移除 {0}|移除 {0}|{0} を取り除く|{0} entfernen
Rename|重新命名|重命名|名前を変更|Umbenennen
Repeat penalty|重複懲罰|重复惩罚|繰り返しペナルティ|Wiederholungsstrafe
Reset to server defaults|還原為伺服器預設值|恢复服务器默认值|サーバーの既定値に戻す|Auf Server-Vorgaben zurücksetzen
Response schema|回應結構描述|响应模式|応答スキーマ|Antwortschema
Retry|重試|重试|再試行|Erneut versuchen
Retry now|立即重試|立即重试|今すぐ再試行|Jetzt versuchen
Run|執行|运行|実行|Starten
Run tool|執行工具|运行工具|ツールを実行|Tool ausführen
Running|執行中|运行中|実行中|Laufend
Running…|執行中…|运行中…|実行中…|Läuft…
Same for {0} tokens; then {1} here and {2} there.|前 {0} 個 token 相同；接著這邊是 {1}，那邊是 {2}。|前 {0} 个 token 相同；接着这边是 {1}，那边是 {2}。|{0} トークンまで同じ。次はこちらが {1}、あちらが {2}。|{0} Token sind gleich; dann hier {1}, dort {2}.
Same without drafts?|沒有草稿也一樣？|没有草稿也一样？|ドラフトなしでも同じ？|Ohne Entwürfe gleich?
Sample|取樣|采样|サンプリング|Sampling
Save|儲存|保存|保存|Speichern
Save prompt|儲存提示詞|保存提示词|プロンプトを保存|Prompt speichern
Save these settings as a preset|將這些設定存成預設組合|将这些设置存为预设|この設定をプリセットとして保存|Diese Einstellungen als Vorlage speichern
Scroll to the end|捲到最後|滚动到底部|最後へスクロール|Zum Ende
Search chats|搜尋對話|搜索对话|チャットを検索|Chats durchsuchen
Seed|隨機種子|随机种子|シード|Seed
Send|傳送|发送|送信|Senden
Send result|傳送結果|发送结果|結果を送信|Ergebnis senden
Server|伺服器|服务器|サーバー|Server
server default|伺服器預設|服务器默认|サーバーの既定|Vorgabe
Serving|服務中|服务中|提供中|Im Dienst
Settings|設定|设置|設定|Einstellungen
Show {0}|顯示 {0}|显示 {0}|{0} を表示|{0} zeigen
Skip|略過|跳过|スキップ|Überspringen
sound: {0} tokens|聲音：{0} 個 token|声音：{0} 个 token|音声: {0} トークン|Ton: {0} Token
Speculation|推測解碼|推测解码|投機的デコード|Spekulation
Standing by|待命|待命|待機中|In Bereitschaft
Stop|停止|停止|停止|Anhalten
Stop recording|停止錄音|停止录音|録音を止める|Aufnahme beenden
stopped|已停止|已停止|停止しました|angehalten
System prompt|系統提示|系统提示|システムプロンプト|System-Prompt
Temperature|溫度|温度|温度|Temperatur
Text|文字|文本|テキスト|Text
The answer reached the token limit.|回答已達 token 上限。|回答已达 token 上限。|回答がトークン数の上限に達しました。|Die Antwort hat die Token-Grenze erreicht.
The connection was lost before the answer was complete.|回答完成前連線中斷。|回答完成前连接中断。|回答が完了する前に接続が切れました。|Die Verbindung brach ab, bevor die Antwort fertig war.
the end|結尾|结尾|終わり|das Ende
the file has no chat of Carat, llama.cpp or Open WebUI|檔案中沒有 Carat、llama.cpp 或 Open WebUI 的對話|文件中没有 Carat、llama.cpp 或 Open WebUI 的对话|Carat、llama.cpp、Open WebUI のチャットがありません|die Datei enthält keinen Chat von Carat, llama.cpp oder Open WebUI
The file has no record of carat gate or carat tune.|檔案中沒有 carat gate 或 carat tune 的紀錄。|文件中没有 carat gate 或 carat tune 的记录。|carat gate や carat tune の記録がありません。|Die Datei enthält keine Messdaten von carat gate oder carat tune.
the file is not JSON|檔案不是 JSON|文件不是 JSON|JSON ファイルではありません|die Datei ist kein JSON
The longest answer, in tokens|回答的最大長度（token）|回答的最大长度（token）|回答の最大長（トークン）|Die längste Antwort, in Token
The microphone can't be used: allow it in the browser, and open this page at localhost or over https.|無法使用麥克風：請在瀏覽器中允許，並以 localhost 或 https 開啟本頁。|无法使用麦克风：请在浏览器中允许，并通过 localhost 或 https 打开本页。|マイクを使えません。ブラウザーで許可し、localhost か https で開いてください。|Das Mikrofon ist nicht nutzbar: erlaube es im Browser und öffne diese Seite unter localhost oder https.
The model|模型|模型|モデル|Das Modell
The model is answering|模型回答中|模型回答中|モデルが回答しています|Das Modell antwortet
the other answer|另一個回答|另一个回答|もう一方の回答|die andere Antwort
The same prompt, seed and settings. What both say is dimmed; the first token that differs is marked.|相同的提示、種子與設定。相同部分淡化，第一個不同的 token 有標記。|相同的提示、种子和设置。相同部分淡化，第一个不同的 token 有标记。|同じプロンプト・シード・設定。同じ部分は薄く、最初に違うトークンに印が付きます。|Gleicher Prompt, Seed und Einstellungen. Gleiches ist blass, das erste andere Token markiert.
The same seed gives the same answer|相同種子給出相同回答|相同种子给出相同回答|同じシードは同じ回答になります|Gleicher Seed, gleiche Antwort
the server|伺服器|服务器|サーバー|der Server
The server is busy. Retry in a moment.|伺服器忙碌中，請稍後重試。|服务器繁忙，请稍后重试。|サーバーが混み合っています。少し後で再試行してください。|Der Server ist ausgelastet. Versuche es gleich noch einmal.
The server refused this API key. Enter another.|伺服器不接受這個 API 金鑰，請輸入另一個。|服务器不接受此 API 密钥，请输入另一个。|サーバーがこの API キーを拒否しました。別のキーを入力してください。|Der Server lehnt diesen API-Schlüssel ab. Gib einen anderen ein.
The server's default is used for empty fields. Settings stay in this browser.|空白欄位採用伺服器預設值。設定存在這個瀏覽器裡。|空白项采用服务器默认值。设置保存在此浏览器中。|空欄にはサーバーの既定値が使われます。設定はこのブラウザーに保存されます。|Für leere Felder gilt die Vorgabe des Servers. Einstellungen bleiben in diesem Browser.
the stream ended without an answer|串流結束但沒有回答|流已结束但没有回答|応答がないままストリームが終わりました|der Strom endete ohne Antwort
Theme: as the system|外觀：跟隨系統|外观：跟随系统|テーマ: システムに合わせる|Design: wie das System
Theme: dark|外觀：深色|外观：深色|テーマ: ダーク|Design: dunkel
Theme: light|外觀：淺色|外观：浅色|テーマ: ライト|Design: hell
Thinking|思考|思考|思考|Nachdenken
Thinking…|思考中…|思考中…|思考中…|Denkt nach…
this answer|這個回答|这个回答|この回答|diese Antwort
This browser can't read {0} as a picture. It was not attached.|{0} 不是此瀏覽器能讀的圖片，未附加。|{0} 不是此浏览器能读的图片，未附加。|{0} はこのブラウザーで読める画像ではないため、添付されませんでした。|{0} ist kein Bild, das dieser Browser lesen kann, und wurde nicht angehängt.
This browser can't read {0} as sound, or it is too long. It was not attached.|{0} 不是此瀏覽器能讀的聲音，或太長，未附加。|{0} 不是此浏览器能读的声音，或太长，未附加。|{0} はこのブラウザーで読める音声ではないか、長すぎるため、添付されませんでした。|{0} ist kein Ton, den dieser Browser lesen kann, oder zu lang, und wurde nicht angehängt.
This browser doesn't let the page store data. New messages are kept only until this page closes.|瀏覽器不允許本頁儲存資料。新訊息只保留到關閉本頁。|浏览器不允许本页存储数据。新消息只保留到关闭本页。|ブラウザーが保存を許可していません。新しいメッセージはこのページを閉じると失われます。|Dieser Browser lässt die Seite nichts speichern. Neue Nachrichten bleiben nur, bis diese Seite geschlossen wird.
This browser's storage is full. New messages are kept only until this page closes: export your chats, or delete old ones.|瀏覽器的儲存空間已滿。新訊息只保留到關閉本頁：請匯出對話，或刪除舊的。|浏览器存储空间已满。新消息只保留到关闭本页：请导出对话，或删除旧的。|ブラウザーの保存領域がいっぱいです。新しいメッセージはこのページを閉じると失われます。書き出すか、古いチャットを削除してください。|Der Speicher dieses Browsers ist voll. Neue Nachrichten bleiben nur, bis diese Seite geschlossen wird: exportiere deine Chats oder lösche alte.
This chat as JSON|此對話存成 JSON|此对话存为 JSON|このチャットを JSON で保存|Diesen Chat als JSON
This chat as Markdown|此對話存成 Markdown|此对话存为 Markdown|このチャットを Markdown で保存|Diesen Chat als Markdown
This chat is longer than the model's context. Shorten or remove the last message, or start a new chat.|對話超過模型的上下文長度。請縮短或移除最後一則訊息，或開始新對話。|对话超过模型的上下文长度。请缩短或移除最后一条消息，或开始新对话。|会話がモデルのコンテキストを超えています。最後のメッセージを短くするか取り除くか、新しいチャットを始めてください。|Das Gespräch ist länger als der Kontext des Modells. Kürze oder entferne die letzte Nachricht oder beginne einen neuen Chat.
This chat is not in this browser.|這個瀏覽器裡沒有這個對話。|此浏览器中没有这个对话。|このチャットはこのブラウザーにありません。|Dieser Chat ist nicht in diesem Browser.
this one|這一台|这一台|このサーバー|dieser
This server needs an API key.|此伺服器需要 API 金鑰。|此服务器需要 API 密钥。|このサーバーには API キーが必要です。|Dieser Server braucht einen API-Schlüssel.
Thought|思考過程|思考过程|思考内容|Gedanken
Thought for {0} s|思考了 {0} 秒|思考了 {0} 秒|{0} 秒間思考|{0} s nachgedacht
Title|標題|标题|タイトル|Titel
Today|今天|今天|今日|Heute
tokens|token|token|トークン|Token
Tokens per second in the last minute, at most {0}|過去一分鐘每秒 token 數，最高 {0}|过去一分钟每秒 token 数，最高 {0}|直近 1 分間の毎秒トークン数、最大 {0}|Token je Sekunde in der letzten Minute, höchstens {0}
Tool call|工具呼叫|工具调用|ツール呼び出し|Tool-Aufruf
Tool result|工具結果|工具结果|ツールの結果|Tool-Ergebnis
Tools|工具|工具|ツール|Tools
Tried|試用中|试用中|試用中|In Erprobung
Type a command or a chat's title|輸入指令或對話標題|输入命令或对话标题|コマンドかチャットのタイトルを入力|Befehl oder Titel eines Chats
Undo|復原|撤销|元に戻す|Rückgängig
unlimited|無上限|无上限|無制限|unbegrenzt
Untitled|未命名|未命名|無題|Ohne Titel
Verify|驗證|验证|検証|Prüfen
Versions served|服務的版本|服务的版本|提供中のバージョン|Versionen im Dienst
Versions|版本|版本|バージョン|Fassungen
Waiting for the first metrics…|等待數據…|等待指标…|指標を待っています…|Warten auf die ersten Werte…
What can I help with?|我能幫什麼忙？|我能帮什么忙？|何をお手伝いしましょうか？|Womit kann ich helfen?
What changed|變更紀錄|变更记录|変更履歴|Was sich geändert hat
What is the capital of Japan?|日本的首都是哪裡？|日本的首都是哪里？|日本の首都はどこ？|Was ist die Hauptstadt von Japan?
Write a Python function that returns the largest number in a list.|寫一個回傳串列最大值的 Python 函式。|写一个返回列表最大值的 Python 函数。|リストの最大値を返す Python 関数を書いて。|Schreibe eine Python-Funktion, die die größte Zahl einer Liste liefert.
X-ray|透視|透视|内訳|Röntgenbild
Yesterday|昨天|昨天|昨日|Gestern
You|你|你|あなた|Du
Your message is kept. Retry when the server is back.|訊息已保留。伺服器恢復後請重試。|消息已保留。服务器恢复后请重试。|メッセージは残っています。サーバーが戻ったら再試行してください。|Deine Nachricht bleibt erhalten. Versuche es erneut, wenn der Server wieder da ist.
{0} answers, {1} failed, {2} tokens/s|{0} 個回答，{1} 個失敗，{2} tokens/s|{0} 个回答，{1} 个失败，{2} tokens/s|回答 {0} 件、失敗 {1} 件、{2} tokens/s|{0} Antworten, {1} fehlgeschlagen, {2} tokens/s
{0} characters|{0} 個字元|{0} 个字符|{0} 文字|{0} Zeichen
{0} has no readable text (scanned pages, or a password) and was not attached.|{0} 沒有可讀的文字（掃描圖或有密碼），未附加。|{0} 没有可读的文字（扫描图或有密码），未附加。|{0} には読める文字がなく（画像またはパスワード）、添付しませんでした。|{0} enthält keinen lesbaren Text (Bilder oder Passwort) und wurde nicht angehängt.
{0} in the settings is not valid JSON: {1}|設定中的「{0}」不是有效的 JSON：{1}|设置中的“{0}”不是有效的 JSON：{1}|設定の「{0}」が正しい JSON ではありません: {1}|{0} in den Einstellungen ist kein gültiges JSON: {1}
{0} is larger than {1} MB and was not attached.|{0} 大於 {1} MB，未附加。|{0} 大于 {1} MB，未附加。|{0} は {1} MB を超えるため添付しませんでした。|{0} ist größer als {1} MB und wurde nicht angehängt.
{0} is not a text file and was not attached.|{0} 不是文字檔，未附加。|{0} 不是文本文件，未附加。|{0} はテキストではないため添付しませんでした。|{0} ist keine Textdatei und wurde nicht angehängt.
{0} of conversations go to the version that is tried.|{0} 的對話交給試用中的版本。|{0} 的对话交给试用中的版本。|会話の {0} が試用中のバージョンに送られます。|{0} der Unterhaltungen gehen an die erprobte Version.
{0} times faster|快 {0} 倍|快 {0} 倍|{0} 倍速い|{0}-mal schneller
{0} times slower|慢 {0} 倍|慢 {0} 倍|{0} 倍遅い|{0}-mal langsamer
{0} tokens|{0} 個 token|{0} 个 token|{0} トークン|{0} Token
{0} tokens of context|上下文 {0} 個 token|上下文 {0} 个 token|コンテキスト {0} トークン|{0} Token Kontext
{0} tools|{0} 個工具|{0} 个工具|{0} 個のツール|{0} Tools
{0} was not attached: {1} cannot hear sound.|{0} 未附加：{1} 聽不到聲音。|{0} 未附加：{1} 听不到声音。|{0} は添付されませんでした：{1} は音声を聞けません。|{0} wurde nicht angehängt: {1} kann nichts hören.
{0} was not attached: {1} cannot see pictures.|{0} 未附加：{1} 看不到圖片。|{0} 未附加：{1} 看不到图片。|{0} は添付されませんでした：{1} は画像を見られません。|{0} wurde nicht angehängt: {1} kann keine Bilder sehen.
{0} without drafts|無草稿 {0}|无草稿 {0}|ドラフトなし {0}|ohne Entwürfe {0}
`;

export const tables: Record<string, Record<string, string>> = { "zh-Hant": {}, "zh-Hans": {}, ja: {}, de: {} };
for (const line of lines.trim().split("\n")) {
  const [english, ...said] = line.split("|");
  Object.keys(tables).forEach((name, i) => (tables[name][english] = said[i]));
}
