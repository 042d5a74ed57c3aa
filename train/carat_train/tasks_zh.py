"""Tasks answered in Traditional Chinese: each returns (question, answer) or (question, answer, reasoning)."""
from . import facts as f
from . import words as w

DIGITS = "零一二三四五六七八九"
DAYS = "星期一 星期二 星期三 星期四 星期五 星期六 星期日".split()
NAMES = "小明 小華 小美 阿強 志豪 淑芬 雅婷 怡君 建宏 美玲 大衛 林先生 王小姐 陳老師 張太太 李醫師 黃同學".split()
CITIES = "臺北 臺中 臺南 高雄 新竹 花蓮 臺東 基隆 嘉義 宜蘭 東京 巴黎 倫敦 紐約 首爾 香港".split()
FOODS = "米飯 麵包 牛肉麵 水餃 蘋果 香蕉 橘子 西瓜 豆漿 茶 咖啡 牛奶 魚 湯 蛋糕 餅乾 豆腐 青菜".split()
THINGS = "書 筆 雨傘 帽子 鑰匙 手錶 相機 椅子 杯子 地圖 信 皮包 吉他 腳踏車 燈".split()
SURNAMES = "陳林黃張李王吳劉蔡楊許鄭謝郭洪曾邱廖賴徐周葉蘇莊呂江何蕭羅高"
GIVEN = "志家俊建文明美淑雅怡佳宜婷君豪偉傑宏華芳玲惠珍秀英安平樂天心宇軒承翰品妍子晴詩涵"
COLORS = "紅色 藍色 綠色 黃色 白色 黑色 紫色 橘色 灰色 粉紅色".split()
ANIMALS = "貓 狗 兔子 馬 牛 羊 鳥 魚 老虎 熊".split()
PLACES = "公園 學校 圖書館 車站 廚房 市場 醫院 餐廳 博物館 海邊".split()
VERBS = "找到 買了 忘了 修好 借了 畫了 賣掉 撿到".split()


def number(n):
    """0..9999 in Chinese characters."""
    if n < 10:
        return DIGITS[n]
    out, zero = "", False
    for unit, size in (("千", 1000), ("百", 100), ("十", 10), ("", 1)):
        d = n // size % 10
        if d:
            out += ("零" if zero else "") + DIGITS[d] + unit
            zero = False
        elif out:
            zero = True
    return out[1:] if out.startswith("一十") else out


def person(rng):
    return rng.choice(NAMES) if rng.random() < 0.4 else rng.choice(SURNAMES) + "".join(rng.choice(GIVEN) for _ in range(rng.choice([1, 2, 2])))


def line(rng):
    real = w.pooled(rng, "lines_zh", 0.6)
    if real:
        return real
    kind = rng.randrange(5)
    if kind == 0:
        return f"{person(rng)}在{rng.choice(PLACES)}{rng.choice(VERBS)}一個{rng.choice(COLORS)}的{rng.choice(THINGS)}。"
    if kind == 1:
        return f"{person(rng)}喜歡吃{rng.choice(FOODS)}和{rng.choice(FOODS)}。"
    if kind == 2:
        return f"{rng.choice(DAYS)}早上，{person(rng)}從{rng.choice(CITIES)}坐火車到{rng.choice(CITIES)}。"
    if kind == 3:
        return f"我家有{rng.randint(2, 99)}隻{rng.choice(ANIMALS)}，還有{rng.randint(2, 99)}個{rng.choice(THINGS)}。"
    return f"{rng.choice(CITIES)}的{rng.choice(PLACES)}裡有一隻{rng.choice(COLORS)}的{rng.choice(ANIMALS)}。"


def repeat_line(rng):
    text, n = line(rng), rng.randint(2, 6)
    word = DIGITS[n] if n != 2 else "兩"
    ask = rng.choice([f"請把這句話重複{word}次：{text}", f"把下面這一行寫{word}遍：\n{text}", f"請重複{n}次：{text}"])
    return ask, "\n".join([text] * n)


def repeat_once(rng):
    text = line(rng)
    return rng.choice(["請照著說一遍：{}", "請重複這句話：{}", "跟著我說：{}", "請抄寫下面這句話。\n{}"]).format(text), text


def restate(rng):
    who = person(rng)
    table = {"住在哪裡？": (f"{who}住在{{}}。", rng.choice(CITIES)), "最喜歡什麼顏色？": (f"{who}最喜歡{{}}。", rng.choice(COLORS)),
             "喜歡吃什麼？": (f"{who}喜歡吃{{}}。", rng.choice(FOODS)), "今年幾歲？": (f"{who}今年{{}}歲。", str(rng.randint(5, 90))),
             "養了什麼動物？": (f"{who}養了一隻{{}}。", rng.choice(ANIMALS)), "的電話號碼是多少？": (f"{who}的電話號碼是{{}}。", str(rng.randint(10**7, 10**8))),
             "星期幾有空？": (f"{who}{{}}有空。", rng.choice(DAYS))}
    keys = rng.sample(sorted(table), rng.randint(2, len(table)))
    text = "".join(table[k][0].format(table[k][1]) for k in keys)
    k = rng.choice(keys)
    return rng.choice([f"{text}\n請問{who}{k}", f"{text}{who}{k}"]), table[k][0].format(table[k][1])


def arithmetic(rng):
    kind = rng.randrange(4)
    a, b = rng.randint(0, 99), rng.randint(0, 99)
    if kind == 0:
        q, e, r = rng.choice(["{}加{}等於多少？", "{} + {} 是多少？", "請計算 {} + {}。"]).format(a, b), f"{a} + {b}", a + b
    elif kind == 1:
        a, b = max(a, b), min(a, b)
        q, e, r = rng.choice(["{}減{}等於多少？", "{} - {} 是多少？"]).format(a, b), f"{a} - {b}", a - b
    elif kind == 2:
        a, b = rng.randint(0, 12), rng.randint(0, 12)
        q, e, r = rng.choice(["{}乘以{}等於多少？", "{} x {} 是多少？"]).format(a, b), f"{a} x {b}", a * b
    else:
        who, what, n, m = person(rng), rng.choice(FOODS), rng.randint(2, 50), rng.randint(2, 50)
        return (f"{who}有{n}個{what}，又買了{m}個，現在一共有幾個？", f"{who}現在一共有{n + m}個{what}。", f"{n} + {m} = {n + m}")
    return q, rng.choice([f"{e} = {r}。", f"答案是{r}。", f"{e} 等於 {r}。"]), f"{e} = {r}"


def geography(rng):
    _, _, continent, c, capital, _, _ = rng.choice(f.COUNTRIES)
    kind = rng.randrange(4)
    if kind < 2:
        return rng.choice(["{}的首都是哪裡？", "請問{}的首都是哪一個城市？", "{}的首都在哪裡？"]).format(c), f"{c}的首都是{capital}。"
    if kind == 2:
        return f"{capital}是哪一個國家的首都？", f"{capital}是{c}的首都。"
    return f"{c}在哪一洲？", f"{c}在{f.CONTINENT_ZH[continent]}。"


def general(rng):
    _, _, q, a = rng.choice(f.GENERAL)
    return q, a


def translate_to_zh(rng):
    if rng.random() < 0.35:
        en, zh = rng.choice(f.LEXICON)
        return rng.choice([f"How do you say \"{en}\" in Traditional Chinese?", f"What is \"{en}\" in Chinese?", f"「{en}」的中文是什麼？"]), \
            rng.choice([f"「{en}」的中文是「{zh}」。", zh])
    en, zh = f.sentence_pair(rng)
    return rng.choice(["Translate into Traditional Chinese: {}", "請翻譯成中文：{}", "Translate to Chinese: {}", "把這句話翻成繁體中文：{}"]).format(en), zh


def translate_to_en(rng):
    if rng.random() < 0.35:
        en, zh = rng.choice(f.LEXICON)
        return rng.choice([f"「{zh}」的英文是什麼？", f"What does 「{zh}」 mean in English?"]), rng.choice([f"「{zh}」的英文是 \"{en}\"。", f"It means \"{en}\"."])
    en, zh = f.sentence_pair(rng)
    return rng.choice(["請翻譯成英文：{}", "Translate into English: {}", "這句話的英文怎麼說？{}"]).format(zh), en


def calendar(rng):
    i, kind = rng.randrange(7), rng.randrange(4)
    if kind == 0:
        return f"{DAYS[i]}的後一天是星期幾？", f"{DAYS[i]}的後一天是{DAYS[(i + 1) % 7]}。"
    if kind == 1:
        return f"{DAYS[i]}的前一天是星期幾？", f"{DAYS[i]}的前一天是{DAYS[i - 1]}。"
    if kind == 2:
        m = rng.randrange(12)
        return f"{m + 1}月有幾天？", f"{m + 1}月有{w.MONTH_DAYS[m]}天" + ("，閏年有29天。" if m == 1 else "。")
    a, b, n = rng.choice(f.UNITS_ZH)
    k = rng.randint(1, 12)
    return f"{k}{a}等於多少{b}？", f"{k}{a}等於{k * n}{b}。", f"1{a} = {n}{b}；{k} x {n} = {k * n}"


def numbers(rng):
    n = rng.randint(0, 9999)
    if rng.random() < 0.5:
        return f"請用中文寫出數字{n}。", number(n) + "。"
    return f"「{number(n)}」用阿拉伯數字怎麼寫？", str(n)


def lists(rng):
    pool, what, unit = rng.choice([(ANIMALS, "動物", "種"), (FOODS, "食物", "種"), (COLORS, "顏色", "種"), (CITIES, "城市", "個"), (THINGS, "東西", "樣"),
                                   ([c[3] for c in f.COUNTRIES], "國家", "個"), ([p[1] for p in f.PLANETS], "行星", "顆")])
    n = rng.randint(2, 8)
    items, word = rng.sample(pool, min(n, len(pool))), "兩" if n == 2 else DIGITS[n]
    if rng.random() < 0.5:
        return f"請列出{word}{unit}{what}。", f"這裡有{word}{unit}{what}：" + "、".join(items) + "。"
    return f"請用編號列出{word}{unit}{what}。", "\n".join(f"{i}. {x}" for i, x in enumerate(items, 1))


def element(rng):
    _, symbol, zh = rng.choice(f.ELEMENTS)
    return (f"{zh}的化學符號是什麼？", f"{zh}的化學符號是 {symbol}。") if rng.random() < 0.5 else (f"{symbol} 是什麼元素的符號？", f"{symbol} 是{zh}的符號。")


def make_sentence(rng):
    noun, place = rng.choice(THINGS), rng.choice(PLACES)
    return (f"請用「{noun}」和「{place}」造一個句子。",
            rng.choice([f"{person(rng)}把{noun}忘在{place}了。", f"{place}裡有一個{rng.choice(COLORS)}的{noun}。", f"我昨天在{place}看到一個很漂亮的{noun}。"]))


TASKS = [(repeat_line, 4), (repeat_once, 4), (restate, 5), (arithmetic, 4), (geography, 4), (general, 4), (translate_to_zh, 5),
         (translate_to_en, 4), (calendar, 2), (numbers, 1), (lists, 3), (element, 1), (make_sentence, 2)]
